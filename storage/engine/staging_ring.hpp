// The staging memory of one rank: a fixed number of blocks, allocated when first needed and kept until they are given back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include <cairn/base/bytes.hpp>

namespace cairn {

// Thread-safe.
class StagingRing {
 public:
  // Of addresses and, as far as stores are concerned, of everything that is aligned.
  static constexpr std::size_t kAlignmentBytes = 4096;

  // As many blocks of `block_bytes` (a multiple of kAlignmentBytes) as fit in `bytes_max`, one at least.
  StagingRing(std::uint64_t bytes_max, std::size_t block_bytes);
  ~StagingRing();
  StagingRing(const StagingRing&) = delete;
  StagingRing& operator=(const StagingRing&) = delete;

  std::size_t block_bytes() const { return block_bytes_; }
  std::size_t blocks_max() const { return blocks_max_; }

  // Of all blocks that were allocated, in use or not.
  std::uint64_t bytes_allocated() const;
  // Allocates blocks ahead, as many as `bytes` need and there may be, and touches their memory. Throws std::bad_alloc.
  void reserve(std::uint64_t bytes);

  // Frees what is not in use now, and what is when it comes back; until `keep`, or `reserve`.
  void give_back() noexcept;
  void keep();

  // A block, or nullptr when all are out. Throws std::bad_alloc.
  char* try_acquire();
  void release(char* block) noexcept;

 private:
  // Under the lock.
  char* allocate();
  void free_kept() noexcept;

  const std::size_t block_bytes_;
  const std::size_t blocks_max_;
  mutable std::mutex mutex_;
  std::size_t allocated_ = 0;
  bool keeps_ = true;
  std::vector<char*> free_;  // the one used last is used first: it is in the cache, and few are touched
};

// One block of a ring, given back when this goes.
class StagingBlock {
 public:
  StagingBlock() = default;
  StagingBlock(StagingRing& ring, char* memory) : ring_(&ring), memory_(memory) {}
  StagingBlock(StagingBlock&& other) noexcept : ring_(other.ring_), memory_(other.memory_) { other.memory_ = nullptr; }
  StagingBlock& operator=(StagingBlock&& other) noexcept {
    std::swap(ring_, other.ring_);
    std::swap(memory_, other.memory_);
    return *this;
  }
  ~StagingBlock() { release(); }

  explicit operator bool() const { return memory_ != nullptr; }
  char* data() const { return memory_; }
  MutableByteSpan bytes(std::size_t offset, std::size_t length) const { return {memory_ + offset, length}; }
  void release() noexcept {
    if (memory_) ring_->release(memory_);
    memory_ = nullptr;
  }

 private:
  StagingRing* ring_ = nullptr;
  char* memory_ = nullptr;
};

}  // namespace cairn
