// The staging memory of one rank: a limited number of blocks. Blocks are allocated on first use and
// kept until `give_back`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <cairn/base/bytes.hpp>
#include <cairn/base/mutex.hpp>
#include <cairn/storage/engine/staging_memory.hpp>

namespace cairn {

class StagingBlock;

// Thread-safe.
class StagingRing {
 public:
  // Alignment of block addresses. Stores may require at most this alignment.
  static constexpr std::size_t kAlignmentBytes = StagingMemory::kAlignmentBytes;

  // Holds as many blocks of `block_bytes` as fit in `bytes_max`, but at least one. `block_bytes`
  // must be a multiple of kAlignmentBytes.
  StagingRing(std::uint64_t bytes_max, std::size_t block_bytes);

  std::size_t block_bytes() const { return block_bytes_; }
  std::size_t blocks_max() const { return blocks_max_; }

  // Returns the bytes of all allocated blocks, in use or free.
  std::uint64_t bytes_allocated() const;
  // Allocates blocks for `bytes` in advance, up to the limit, and touches their memory. Throws
  // kUnavailable.
  void reserve(std::uint64_t bytes);

  // Frees the blocks that are not in use. Until `keep` or `reserve` is called, also frees each
  // block in use when it is released.
  void give_back() noexcept;
  void keep();

  // Returns a block, which must not outlive the ring, or none if all are in use. Throws
  // kUnavailable.
  StagingBlock try_acquire();

 private:
  friend class StagingBlock;
  using Memory = std::unique_ptr<const StagingMemory>;
  Memory allocate() CAIRN_REQUIRES(mutex_);
  void release(Memory block) noexcept;
  void free_kept() noexcept CAIRN_REQUIRES(mutex_);

  const std::size_t block_bytes_;
  const std::size_t blocks_max_;
  mutable Mutex mutex_;
  std::size_t allocated_ CAIRN_GUARDED_BY(mutex_) = 0;
  bool keeps_ CAIRN_GUARDED_BY(mutex_) = true;
  // A stack: the block used last is reused first, because it is probably in the CPU cache. This
  // also touches fewer blocks.
  std::vector<Memory> free_ CAIRN_GUARDED_BY(mutex_);
};

// Owns one block of a ring, or none, and releases it when destroyed.
class StagingBlock {
 public:
  StagingBlock() = default;
  StagingBlock(StagingRing& ring, std::unique_ptr<const StagingMemory> memory) : ring_(&ring), memory_(std::move(memory)) {}
  StagingBlock(StagingBlock&& other) noexcept = default;
  StagingBlock& operator=(StagingBlock&& other) noexcept {
    std::swap(ring_, other.ring_);
    std::swap(memory_, other.memory_);
    return *this;
  }
  ~StagingBlock() {
    if (memory_) ring_->release(std::move(memory_));
  }

  explicit operator bool() const { return memory_ != nullptr; }
  char* data() const { return memory_->data(); }
  // Page-locks the block for copies from and to devices, unless that is done already. It stays
  // locked until it is freed. Must not be called with a lock held.
  void lock() const noexcept { memory_->lock(); }
  MutableByteSpan bytes(std::size_t offset, std::size_t length) const { return {memory_->data() + offset, length}; }

 private:
  StagingRing* ring_ = nullptr;
  std::unique_ptr<const StagingMemory> memory_;
};

}  // namespace cairn
