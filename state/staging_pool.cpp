#include <cairn/state/staging_pool.hpp>

#include <exception>
#include <string>
#include <utility>

#include <cairn/base/error.hpp>
#include <cairn/base/log.hpp>
#include <cairn/base/signals_blocked.hpp>

namespace cairn {

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

StagingPool::~StagingPool() {
  if (locking_.joinable()) locking_.join();
}

// Prefers blocks that are locked, or that are not, as asked.
StagingPool::Block StagingPool::take_kept(std::uint64_t bytes, bool locked) {
  auto found = kept_.end();
  for (auto block = kept_.begin(); block != kept_.end(); ++block)
    if ((*block)->bytes() == bytes && (found == kept_.end() || (*block)->is_locked() == locked)) found = block;
  if (found == kept_.end()) return nullptr;
  Block block = std::move(*found);
  kept_.erase(found);
  return block;
}

// Sizes must be equal, not just sufficient: a save with the same layout asks for the same sizes.
std::shared_ptr<const StagingMemory> StagingPool::take(std::uint64_t bytes, Locking locking) {
  auto lease = std::make_shared<Lease>();
  // A save may outlive the stager, and gives its memory back after that.
  lease->pool = shared_from_this();
  {
    MutexLock lock(mutex_);
    Block block = take_kept(bytes, locking != Locking::kNever);
    const auto is_too_much = [&]() CAIRN_REQUIRES(mutex_) { return bytes_max_ != 0 && bytes_held_ + bytes > bytes_max_; };
    if (!block) {
      while (is_too_much() && !kept_.empty()) {
        forget(std::move(kept_.back()));
        kept_.pop_back();
      }
      while (is_too_much() && forgotten_) changed_.wait(mutex_);
      if (is_too_much())
        throw Error(ErrorCode::kPrecondition, "staging a state needs " + std::to_string(bytes) +
                                                  " bytes of host memory beside the " + std::to_string(bytes_held_) +
                                                  " that saves in flight hold, and the bound is " + std::to_string(bytes_max_) +
                                                  ": raise StagingOptions::bytes_max");
      kept_.reserve(blocks_ + 1);  // so that give_back cannot fail
      block = std::make_shared<const StagingMemory>(bytes);
      ++blocks_;
      bytes_held_ += bytes;
    }
    lease->generation = generation_;
    lease->lock_it = locking == Locking::kLater;
    lease->block = std::move(block);
  }
  if (locking == Locking::kNow) lease->block->lock();
  // Shares ownership of the lease, and points to its block.
  return {lease, lease->block.get()};
}

void StagingPool::give_back(Block block, std::uint64_t generation, bool lock_it) noexcept {
  MutexLock lock(mutex_);
  // A block that was taken before `release` is freed now.
  if (!keep_ || generation != generation_) return forget(std::move(block));
  if (lock_it && !block->is_locked() && !being_locked_) lock_in_background(block);
  kept_.push_back(std::move(block));
}

// The next save may use the block meanwhile.
void StagingPool::lock_in_background(const Block& block) {
  if (locking_.joinable()) locking_.join();  // it has ended
  try {
    locking_ = start_thread("cairn-lock", [this, shared = block]() mutable {
      shared->lock();
      {
        MutexLock lock(mutex_);
        being_locked_ = nullptr;
        if (std::exchange(forgotten_, false)) forget(std::move(shared));
      }
      changed_.notify_all();
    });
    being_locked_ = block.get();
  } catch (const std::exception&) {  // no thread is to be had: copies stay as fast as they were
  }
}

// Frees the block before others see that it is gone.
void StagingPool::forget(Block block) {
  if (block.get() == being_locked_) {
    forgotten_ = true;
    return;
  }
  bytes_held_ -= block->bytes();
  --blocks_;
  block.reset();
}

// Blocks in use stay with their saves. The new generation marks them to be freed on return.
bool StagingPool::release() {
  MutexLock lock(mutex_);
  ++generation_;
  const bool any = !kept_.empty();
  for (Block& kept : kept_) forget(std::move(kept));
  kept_.clear();
  return any;
}

std::uint64_t StagingPool::bytes_held() const {
  MutexLock lock(mutex_);
  return bytes_held_;
}

}  // namespace cairn
