#include <cairn/storage/engine/staging_ring.hpp>

#include <algorithm>
#include <cstring>
#include <new>

#include <cairn/base/error.hpp>

namespace cairn {

StagingRing::StagingRing(std::uint64_t bytes_max, std::size_t block_bytes)
    : block_bytes_(block_bytes), blocks_max_(static_cast<std::size_t>(std::max<std::uint64_t>(1, bytes_max / block_bytes))) {
  check_invariant(block_bytes > 0 && block_bytes % kAlignmentBytes == 0, "staging blocks must be whole pages");
  free_.reserve(std::min<std::size_t>(blocks_max_, 1024));
}

StagingRing::~StagingRing() { free_kept(); }

// Never waits: engines begin a task only when there is a block for it.
char* StagingRing::try_acquire() {
  MutexLock lock(mutex_);
  if (!free_.empty()) {
    // The block used last is the likeliest to be in the cache.
    char* block = free_.back();
    free_.pop_back();
    return block;
  }
  return allocated_ == blocks_max_ ? nullptr : allocate();
}

char* StagingRing::allocate() {
  free_.reserve(allocated_ + 1);  // so that `release` never allocates
  auto* block = static_cast<char*>(::operator new (block_bytes_, std::align_val_t{kAlignmentBytes}));
  ++allocated_;
  return block;
}

std::uint64_t StagingRing::bytes_allocated() const {
  MutexLock lock(mutex_);
  return std::uint64_t{allocated_} * block_bytes_;
}

void StagingRing::free_kept() noexcept {
  for (char* block : free_) ::operator delete (block, std::align_val_t{kAlignmentBytes});
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
    char* const block = allocate();
    // Touches the pages, so that the first save does not wait for them.
    std::memset(block, 0, block_bytes_);
    free_.push_back(block);
  }
}

void StagingRing::release(char* block) noexcept {
  MutexLock lock(mutex_);
  free_.push_back(block);
  // Memory was given back while this block was in use.
  if (!keeps_) free_kept();
}

}  // namespace cairn
