// The host memory of staged states: blocks that are given back when their last user lets go of them. Internal.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include <torch/types.h>

namespace cairn {

// One allocation, plain or page-locked.
class StagingMemory {
 public:
  static constexpr std::size_t kAlignmentBytes = 4096;

  // Throws kUnavailable if there is none.
  StagingMemory(std::uint64_t bytes, bool pinned);
  ~StagingMemory();
  StagingMemory(const StagingMemory&) = delete;
  StagingMemory& operator=(const StagingMemory&) = delete;

  char* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }
  bool pinned() const { return owner_.defined(); }

 private:
  const std::uint64_t bytes_;
  torch::Tensor owner_;  // of page-locked memory
  char* data_ = nullptr;
};

// Thread-safe. Blocks may outlive it.
class StagingPool : public std::enable_shared_from_this<StagingPool> {
 public:
  // `bytes_max`: of all blocks, 0: no bound. `keep`: blocks that come back are kept for the next who takes one of the same size.
  StagingPool(std::uint64_t bytes_max, bool keep) : bytes_max_(bytes_max), keep_(keep) {}

  // At least one byte. `pinned`: if there is no page-locked memory to be had, it is plain. Throws kPrecondition beyond the bound,
  // kUnavailable.
  std::shared_ptr<const StagingMemory> take(std::uint64_t bytes, bool pinned);
  // Frees what is kept, and what is in use once it comes back. Returns whether there was anything.
  bool release();
  std::uint64_t bytes_held() const;

 private:
  using Block = std::unique_ptr<const StagingMemory>;
  struct Lease;
  Block take_kept(std::uint64_t bytes, bool pinned);
  static Block make(std::uint64_t bytes, bool pinned);
  void give_back(Block block, std::uint64_t generation) noexcept;

  const std::uint64_t bytes_max_;
  const bool keep_;
  mutable std::mutex mutex_;
  std::vector<Block> kept_;
  std::size_t blocks_ = 0;        // in use and kept
  std::uint64_t bytes_held_ = 0;  // the same
  std::uint64_t generation_ = 0;  // blocks of earlier ones are not kept
};

}  // namespace cairn
