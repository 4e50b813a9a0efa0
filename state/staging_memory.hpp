// Host memory for staged states: blocks that return to the pool when their last user releases them.
// Internal.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include <torch/types.h>

#include <cairn/base/mutex.hpp>

namespace cairn {

// One allocation, plain or page-locked.
class StagingMemory {
 public:
  static constexpr std::size_t kAlignmentBytes = 4096;

  // Throws kUnavailable if allocation fails.
  StagingMemory(std::uint64_t bytes, bool pinned);
  ~StagingMemory();
  StagingMemory(const StagingMemory&) = delete;
  StagingMemory& operator=(const StagingMemory&) = delete;

  char* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }
  bool pinned() const { return owner_.defined() || locked_; }
  // Page-locks plain memory, which may be in use meanwhile. Does nothing if that is not possible.
  void lock() const noexcept;

 private:
  const std::uint64_t bytes_;
  torch::Tensor owner_;  // owns memory that was allocated page-locked
  mutable std::atomic<bool> locked_{false};
  char* data_ = nullptr;
};

// Allocates `bytes` bytes. With `pinned`, they are page-locked if such memory is available. If not,
// logs a warning once. Throws kUnavailable.
std::unique_ptr<const StagingMemory> make_staging_memory(std::uint64_t bytes, bool pinned);

// Whether a block is to be page-locked, if such memory is available.
enum class Locking : std::uint8_t {
  kNever = 1,
  kNow,    // takes half a second for each GiB
  kLater,  // in the background, once the block has come back to a pool that keeps it
};

// Thread-safe. Blocks may outlive the pool.
class StagingPool : public std::enable_shared_from_this<StagingPool> {
 public:
  // `bytes_max` limits the bytes of all blocks together; 0: no limit. With `keep`, returned blocks
  // are kept for the next `take` of the same size.
  StagingPool(std::uint64_t bytes_max, bool keep) : bytes_max_(bytes_max), keep_(keep) {}

  ~StagingPool();

  // Returns a block of `bytes` bytes, at least 1. Throws kPrecondition above the limit, and
  // kUnavailable if allocation fails.
  std::shared_ptr<const StagingMemory> take(std::uint64_t bytes, Locking locking);
  // Frees kept blocks now, and blocks in use when they are returned. Returns whether there were
  // kept blocks.
  bool release();
  std::uint64_t bytes_held() const;

 private:
  using Block = std::shared_ptr<const StagingMemory>;  // shared with the thread that locks it
  struct Lease;
  Block take_kept(std::uint64_t bytes, bool pinned) CAIRN_REQUIRES(mutex_);
  void lock_in_background(const Block& block) CAIRN_REQUIRES(mutex_);
  void give_back(Block block, std::uint64_t generation, bool lock_it) noexcept;

  const std::uint64_t bytes_max_;
  const bool keep_;
  mutable Mutex mutex_;
  std::vector<Block> kept_ CAIRN_GUARDED_BY(mutex_);
  std::size_t blocks_ CAIRN_GUARDED_BY(mutex_) = 0;        // in use and kept
  std::uint64_t bytes_held_ CAIRN_GUARDED_BY(mutex_) = 0;  // in use and kept
  std::thread locking_ CAIRN_GUARDED_BY(mutex_);           // page-locks a block
  bool is_locking_ CAIRN_GUARDED_BY(mutex_) = false;
  std::uint64_t generation_ CAIRN_GUARDED_BY(mutex_) = 0;  // `release` begins a new one; blocks of earlier ones are not kept
};

}  // namespace cairn
