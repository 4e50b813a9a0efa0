#include <cairn/state/staging_memory.hpp>

#include <algorithm>
#include <mutex>
#include <new>
#include <string>
#include <system_error>
#include <utility>

#include <sys/mman.h>

#include <torch/torch.h>

#include <cairn/base/error.hpp>
#include <cairn/base/log.hpp>
#include <cairn/state/device_copies.hpp>

namespace cairn {

namespace {

constexpr std::uint64_t kHugePageBytes = 2u << 20;

std::size_t alignment_of(std::uint64_t bytes) { return bytes >= kHugePageBytes ? kHugePageBytes : StagingMemory::kAlignmentBytes; }

}  // namespace

StagingMemory::StagingMemory(std::uint64_t bytes, bool pinned) : bytes_(bytes) {
  try {
    if (pinned) {
      owner_ = torch::empty({static_cast<std::int64_t>(bytes)}, torch::TensorOptions(torch::kUInt8).pinned_memory(true));
      data_ = static_cast<char*>(owner_.data_ptr());
    } else {
      data_ = static_cast<char*>(::operator new (bytes, std::align_val_t{alignment_of(bytes)}, std::nothrow));
      if (!data_) throw std::bad_alloc();
      // Large pages make the first copy into the memory, and page-locking, much faster.
      if (bytes >= kHugePageBytes) static_cast<void>(::madvise(data_, bytes, MADV_HUGEPAGE));
    }
  } catch (const std::exception& error) {  // from LibTorch, or bad_alloc
    throw Error(ErrorCode::kUnavailable, "cannot get " + std::to_string(bytes) + " bytes of " + (pinned ? "page-locked " : "") +
                                             "host memory to stage a state: " + error.what() +
                                             "; release what other saves keep, or save without async_save");
  }
}

StagingMemory::~StagingMemory() {
  if (owner_.defined()) return;
  if (locked_) unlock_host_memory(data_);
  ::operator delete (data_, std::align_val_t{alignment_of(bytes_)});
}

void StagingMemory::lock() const noexcept {
  if (!pinned() && lock_host_memory(data_, bytes_)) locked_ = true;
}

// The state shared by the users of a block.
struct StagingPool::Lease {
  ~Lease() {
    // The pointer to the pool keeps it alive until its last block is back.
    if (block) pool->give_back(std::move(block), generation, lock_it);
  }
  std::shared_ptr<StagingPool> pool;
  std::uint64_t generation = 0;
  bool lock_it = false;
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
std::shared_ptr<const StagingMemory> StagingPool::take(std::uint64_t bytes, Locking locking) {
  const bool pinned = locking != Locking::kNever;
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
    block = make_staging_memory(bytes, locking == Locking::kNow);
    ++blocks_;
    bytes_held_ += bytes;
  }
  lease->generation = generation_;
  if (locking == Locking::kNow) block->lock();
  lease->lock_it = locking == Locking::kLater && !block->pinned();
  lease->block = std::move(block);
  // Shares ownership of the lease, and points to its block.
  return {lease, lease->block.get()};
}

void StagingPool::give_back(Block block, std::uint64_t generation, bool lock_it) noexcept {
  MutexLock lock(mutex_);
  // A block that was taken before `release` is freed now.
  if (keep_ && generation == generation_) {
    if (lock_it && !is_locking_) lock_in_background(block);
    return kept_.push_back(std::move(block));
  }
  bytes_held_ -= block->bytes();
  --blocks_;
  block.reset();  // free the memory before others see that it is gone
}

// The next save may use the block meanwhile.
void StagingPool::lock_in_background(const Block& block) {
  try {
    if (locking_.joinable()) locking_.join();  // it has ended
    is_locking_ = true;
    locking_ = std::thread([this, block] {
      block->lock();
      MutexLock lock(mutex_);
      is_locking_ = false;
    });
  } catch (const std::system_error&) {  // no thread is to be had: copies stay as fast as they were
    is_locking_ = false;
  }
}

StagingPool::~StagingPool() {
  if (locking_.joinable()) locking_.join();
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
