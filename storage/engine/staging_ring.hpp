// The staging memory of one rank: a limited number of blocks. Blocks are allocated on first use and
// kept until `give_back`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <cairn/base/bytes.hpp>
#include <cairn/base/mutex.hpp>

namespace cairn {

// Thread-safe.
class StagingRing {
 public:
  // Alignment of block addresses. Stores may require at most this alignment.
  static constexpr std::size_t kAlignmentBytes = 4096;

  // Holds as many blocks of `block_bytes` as fit in `bytes_max`, but at least one. `block_bytes`
  // must be a multiple of kAlignmentBytes.
  StagingRing(std::uint64_t bytes_max, std::size_t block_bytes);
  ~StagingRing();
  StagingRing(const StagingRing&) = delete;
  StagingRing& operator=(const StagingRing&) = delete;

  std::size_t block_bytes() const { return block_bytes_; }
  std::size_t blocks_max() const { return blocks_max_; }

  // Returns the bytes of all allocated blocks, in use or free.
  std::uint64_t bytes_allocated() const;
  // Allocates blocks for `bytes` in advance, up to the limit, and touches their memory. Throws
  // std::bad_alloc.
  void reserve(std::uint64_t bytes);

  // Frees the blocks that are not in use. Until `keep` or `reserve` is called, also frees each
  // block in use when it is released.
  void give_back() noexcept;
  void keep();

  // Returns a block, or nullptr if all are in use. Throws std::bad_alloc.
  char* try_acquire();
  void release(char* block) noexcept;

 private:
  char* allocate() CAIRN_REQUIRES(mutex_);
  void free_kept() noexcept CAIRN_REQUIRES(mutex_);

  const std::size_t block_bytes_;
  const std::size_t blocks_max_;
  mutable Mutex mutex_;
  std::size_t allocated_ CAIRN_GUARDED_BY(mutex_) = 0;
  bool keeps_ CAIRN_GUARDED_BY(mutex_) = true;
  // A stack: the block used last is reused first, because it is probably in the CPU cache. This
  // also touches fewer blocks.
  std::vector<char*> free_ CAIRN_GUARDED_BY(mutex_);
};

// Owns one block of a ring and releases it when destroyed.
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
