#include <cairn/storage/engine/staging_ring.hpp>

#include <algorithm>
#include <new>

#include <cairn/base/error.hpp>

namespace cairn {

StagingRing::StagingRing(std::uint64_t bytes_max, std::size_t block_bytes)
    : block_bytes_(block_bytes), blocks_max_(static_cast<std::size_t>(std::max<std::uint64_t>(1, bytes_max / block_bytes))) {
  check_invariant(block_bytes > 0 && block_bytes % kAlignmentBytes == 0, "staging blocks must be whole pages");
  free_.reserve(std::min<std::size_t>(blocks_max_, 1024));
}

StagingRing::~StagingRing() {
  for (char* block : free_) ::operator delete (block, std::align_val_t{kAlignmentBytes});
}

char* StagingRing::try_acquire() {
  std::lock_guard lock(mutex_);
  if (!free_.empty()) {
    char* block = free_.back();
    free_.pop_back();
    return block;
  }
  if (allocated_ == blocks_max_) return nullptr;
  free_.reserve(allocated_ + 1);  // so that `release` need not allocate
  auto* block = static_cast<char*>(::operator new (block_bytes_, std::align_val_t{kAlignmentBytes}));
  ++allocated_;
  return block;
}

void StagingRing::release(char* block) noexcept {
  std::lock_guard lock(mutex_);
  free_.push_back(block);
}

}  // namespace cairn
