#include <cairn/storage/engine/staging_ring.hpp>

#include <algorithm>
#include <cstring>

#include <cairn/base/error.hpp>

namespace cairn {

StagingRing::StagingRing(std::uint64_t bytes_max, std::size_t block_bytes)
    : block_bytes_(block_bytes), blocks_max_(static_cast<std::size_t>(std::max<std::uint64_t>(1, bytes_max / block_bytes))) {
  check_invariant(block_bytes > 0 && block_bytes % kAlignmentBytes == 0, "staging blocks must be whole pages");
}

// Never waits: engines begin a task only when there is a block for it.
StagingBlock StagingRing::try_acquire() {
  MutexLock lock(mutex_);
  if (free_.empty()) return allocated_ == blocks_max_ ? StagingBlock() : StagingBlock(*this, allocate());
  // The block used last is the likeliest to be in the cache.
  Memory memory = std::move(free_.back());
  free_.pop_back();
  return {*this, std::move(memory)};
}

StagingRing::Memory StagingRing::allocate() {
  free_.reserve(allocated_ + 1);  // so that `release` never allocates
  Memory memory = std::make_unique<const StagingMemory>(block_bytes_);
  ++allocated_;
  return memory;
}

std::uint64_t StagingRing::bytes_allocated() const {
  MutexLock lock(mutex_);
  return std::uint64_t{allocated_} * block_bytes_;
}

void StagingRing::free_kept() noexcept {
  allocated_ -= free_.size();
  free_.clear();
}

void StagingRing::give_back() noexcept {
  MutexLock lock(mutex_);
  keeps_ = false;
  free_kept();
}

void StagingRing::keep() {
  MutexLock lock(mutex_);
  keeps_ = true;
}

void StagingRing::reserve(std::uint64_t bytes) {
  const std::uint64_t blocks = bytes / block_bytes_ + (bytes % block_bytes_ != 0);
  MutexLock lock(mutex_);
  keeps_ = true;
  while (allocated_ < std::min<std::uint64_t>(blocks, blocks_max_)) {
    free_.push_back(allocate());
    // Touches the pages, so that the first save does not wait for them.
    std::memset(free_.back()->data(), 0, block_bytes_);
  }
}

void StagingRing::release(Memory block) noexcept {
  MutexLock lock(mutex_);
  free_.push_back(std::move(block));
  // Memory was given back while this block was in use.
  if (!keeps_) free_kept();
}

}  // namespace cairn
