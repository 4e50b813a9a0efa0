// Host memory for staged states: blocks that return to the pool when their last user releases them.
// Internal.
#pragma once

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include <cairn/base/mutex.hpp>
#include <cairn/storage/engine/staging_memory.hpp>

namespace cairn {

// Whether a block is to be page-locked, if that is possible.
enum class Locking : std::uint8_t {
  kNever = 1,
  kNow,
  kLater,  // in the background, once the block has come back to a pool that keeps it
};

// Thread-safe. Blocks may outlive the pool.
class StagingPool : public std::enable_shared_from_this<StagingPool> {
 public:
  // `bytes_max` limits the bytes of all blocks together; 0: no limit. With `keep`, returned blocks
  // are kept for the next `take` of the same size.
  StagingPool(std::uint64_t bytes_max, bool keep) : bytes_max_(bytes_max), keep_(keep) {}
  // Waits for a block that is being locked.
  ~StagingPool();

  // Returns a block of `bytes` bytes, at least 1. Throws kPrecondition above the limit, and
  // kUnavailable if allocation fails.
  std::shared_ptr<const StagingMemory> take(std::uint64_t bytes, Locking locking);
  // Frees kept blocks now, and blocks in use when they are returned. A block that is being locked
  // is freed after that. Returns whether there were kept blocks.
  bool release();
  std::uint64_t bytes_held() const;

 private:
  using Block = std::shared_ptr<const StagingMemory>;  // shared with the thread that locks it
  struct Lease;
  Block take_kept(std::uint64_t bytes, bool locked) CAIRN_REQUIRES(mutex_);
  void give_back(Block block, std::uint64_t generation, bool lock_it) noexcept;
  void lock_in_background(const Block& block) CAIRN_REQUIRES(mutex_);
  void forget(Block block) CAIRN_REQUIRES(mutex_);

  const std::uint64_t bytes_max_;
  const bool keep_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<Block> kept_ CAIRN_GUARDED_BY(mutex_);
  std::size_t blocks_ CAIRN_GUARDED_BY(mutex_) = 0;        // in use and kept
  std::uint64_t bytes_held_ CAIRN_GUARDED_BY(mutex_) = 0;  // in use and kept
  std::thread locking_ CAIRN_GUARDED_BY(mutex_);
  const StagingMemory* being_locked_ CAIRN_GUARDED_BY(mutex_) = nullptr;
  bool forgotten_ CAIRN_GUARDED_BY(mutex_) = false;        // the block that is being locked is not kept any more
  std::uint64_t generation_ CAIRN_GUARDED_BY(mutex_) = 0;  // `release` begins a new one; blocks of earlier ones are not kept
};

}  // namespace cairn
