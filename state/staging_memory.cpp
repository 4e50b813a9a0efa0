#include <cairn/state/staging_memory.hpp>

#include <algorithm>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include <torch/torch.h>

#include <cairn/base/error.hpp>
#include <cairn/base/log.hpp>

namespace cairn {

StagingMemory::StagingMemory(std::uint64_t bytes, bool pinned) : bytes_(bytes) {
  try {
    if (pinned) {
      owner_ = torch::empty({static_cast<std::int64_t>(bytes)}, torch::TensorOptions(torch::kUInt8).pinned_memory(true));
      data_ = static_cast<char*>(owner_.data_ptr());
    } else {
      data_ = static_cast<char*>(::operator new (bytes, std::align_val_t{kAlignmentBytes}, std::nothrow));
      if (!data_) throw std::bad_alloc();
    }
  } catch (const std::exception& error) {  // from LibTorch, or bad_alloc
    throw Error(ErrorCode::kUnavailable, "cannot get " + std::to_string(bytes) + " bytes of " + (pinned ? "page-locked " : "") +
                                             "host memory to stage a state: " + error.what() +
                                             "; release what other saves keep, or save without async_save");
  }
}

StagingMemory::~StagingMemory() {
  if (!pinned()) ::operator delete (data_, std::align_val_t{kAlignmentBytes});
}

// The state shared by the users of a block.
struct StagingPool::Lease {
  ~Lease() {
    // The pointer to the pool keeps it alive until its last block is back.
    if (block) pool->give_back(std::move(block), generation);
  }
  std::shared_ptr<StagingPool> pool;
  std::uint64_t generation = 0;
  Block block;
};

StagingPool::Block StagingPool::take_kept(std::uint64_t bytes, bool pinned) {
  const auto fits = [&](const Block& block) { return block->bytes() == bytes && block->pinned() == pinned; };
  const auto found = std::find_if(kept_.begin(), kept_.end(), fits);
  if (found == kept_.end()) return nullptr;
  Block block = std::move(*found);
  kept_.erase(found);
  return block;
}

std::unique_ptr<const StagingMemory> make_staging_memory(std::uint64_t bytes, bool pinned) {
  try {
    return std::make_unique<const StagingMemory>(bytes, pinned);
  } catch (const Error& error) {
    // Page-locked memory is scarce. A copy into plain memory is slower, but it works.
    if (!pinned) throw;
    static std::once_flag said;
    std::call_once(said, [&] { write_log(LogLevel::kWarning, -1, std::string("device copies are slower: ") + error.what()); });
    return std::make_unique<const StagingMemory>(bytes, false);
  }
}

// Sizes must be equal, not just sufficient: a save with the same layout asks for the same sizes.
std::shared_ptr<const StagingMemory> StagingPool::take(std::uint64_t bytes, bool pinned) {
  auto lease = std::make_shared<Lease>();
  // A save may outlive the stager, and gives its memory back after that.
  lease->pool = shared_from_this();
  MutexLock lock(mutex_);
  Block block = take_kept(bytes, pinned);
  if (!block && pinned) block = take_kept(bytes, false);  // page-locked memory was not available last time
  if (!block) {
    if (bytes_max_ != 0 && bytes_held_ + bytes > bytes_max_) {
      for (const Block& kept : kept_) bytes_held_ -= kept->bytes();
      blocks_ -= kept_.size();
      kept_.clear();
    }
    if (bytes_max_ != 0 && bytes_held_ + bytes > bytes_max_)
      throw Error(ErrorCode::kPrecondition, "staging a state needs " + std::to_string(bytes) + " bytes of host memory beside the " +
                                                std::to_string(bytes_held_) + " that saves in flight hold, and the bound is " +
                                                std::to_string(bytes_max_) + ": raise StagingOptions::bytes_max");
    kept_.reserve(blocks_ + 1);  // so that give_back cannot fail
    block = make_staging_memory(bytes, pinned);
    ++blocks_;
    bytes_held_ += bytes;
  }
  lease->generation = generation_;
  lease->block = std::move(block);
  // Shares ownership of the lease, and points to its block.
  return {lease, lease->block.get()};
}

void StagingPool::give_back(Block block, std::uint64_t generation) noexcept {
  MutexLock lock(mutex_);
  // A block that was taken before `release` is freed now.
  if (keep_ && generation == generation_) return kept_.push_back(std::move(block));
  bytes_held_ -= block->bytes();
  --blocks_;
  block.reset();  // free the memory before others see that it is gone
}

// Blocks in use stay with their saves. The new generation marks them to be freed on return.
bool StagingPool::release() {
  MutexLock lock(mutex_);
  ++generation_;
  for (const Block& kept : kept_) bytes_held_ -= kept->bytes();
  blocks_ -= kept_.size();
  const bool any = !kept_.empty();
  kept_.clear();
  return any;
}

std::uint64_t StagingPool::bytes_held() const {
  MutexLock lock(mutex_);
  return bytes_held_;
}

}  // namespace cairn
