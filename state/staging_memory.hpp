// Host memory for staged states: blocks that return to the pool when their last user releases them.
// Internal.
#pragma once

#include <cstdint>
#include <memory>
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
  bool pinned() const { return owner_.defined(); }

 private:
  const std::uint64_t bytes_;
  torch::Tensor owner_;  // owns page-locked memory
  char* data_ = nullptr;
};

// Allocates `bytes` bytes. With `pinned`, they are page-locked if such memory is available. If it is
// not, logs a warning once. Throws kUnavailable.
std::unique_ptr<const StagingMemory> make_staging_memory(std::uint64_t bytes, bool pinned);

// Thread-safe. Blocks may outlive the pool.
class StagingPool : public std::enable_shared_from_this<StagingPool> {
 public:
  // `bytes_max` limits the bytes of all blocks together; 0: no limit. With `keep`, returned blocks
  // are kept for the next `take` of the same size.
  StagingPool(std::uint64_t bytes_max, bool keep) : bytes_max_(bytes_max), keep_(keep) {}

  // Returns a block of `bytes` bytes, at least 1. With `pinned`, the block is page-locked if such
  // memory is available. Throws kPrecondition above the limit, kUnavailable if allocation fails.
  std::shared_ptr<const StagingMemory> take(std::uint64_t bytes, bool pinned);
  // Frees kept blocks now, and blocks in use when they are returned. Returns whether there were
  // kept blocks.
  bool release();
  std::uint64_t bytes_held() const;

 private:
  using Block = std::unique_ptr<const StagingMemory>;
  struct Lease;
  Block take_kept(std::uint64_t bytes, bool pinned) CAIRN_REQUIRES(mutex_);
  void give_back(Block block, std::uint64_t generation) noexcept;

  const std::uint64_t bytes_max_;
  const bool keep_;
  mutable Mutex mutex_;
  std::vector<Block> kept_ CAIRN_GUARDED_BY(mutex_);
  std::size_t blocks_ CAIRN_GUARDED_BY(mutex_) = 0;        // in use and kept
  std::uint64_t bytes_held_ CAIRN_GUARDED_BY(mutex_) = 0;  // in use and kept
  std::uint64_t generation_ CAIRN_GUARDED_BY(mutex_) = 0;  // `release` begins a new one; blocks of earlier ones are not kept
};

}  // namespace cairn
