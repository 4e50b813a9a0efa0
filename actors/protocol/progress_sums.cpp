#include <cairn/actors/protocol/progress_sums.hpp>

#include <algorithm>
#include <limits>

namespace cairn::protocol {
namespace {

constexpr std::uint64_t Moved::*kCounts[] = {&Moved::items, &Moved::items_done, &Moved::bytes, &Moved::bytes_done};

// Returns the fraction done by a rank that has not ended its phase; 0 if the rank does not know its
// total yet.
double part_done(const Moved& moved) {
  if (moved.bytes != 0) return static_cast<double>(moved.bytes_done) / static_cast<double>(moved.bytes);
  return moved.items == 0 ? 0 : static_cast<double>(moved.items_done) / static_cast<double>(moved.items);
}

}  // namespace

void ProgressSums::reset(int ranks) {
  *this = ProgressSums();
  parts_.resize(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) behind_.emplace_hint(behind_.end(), 0.0, rank);
}

void ProgressSums::set(int rank, const Moved& moved, bool has_ended) {
  Part& part = parts_[static_cast<std::size_t>(rank)];
  if (!part.has_ended) behind_.erase({part_done(part.moved), rank});
  for (std::size_t i = 0; i < sums_.size(); ++i) sums_[i] = sums_[i] - part.moved.*kCounts[i] + moved.*kCounts[i];
  part = {moved, has_ended};
  if (!has_ended) behind_.emplace(part_done(moved), rank);
}

Moved ProgressSums::sum() const {
  Moved sum;
  for (std::size_t i = 0; i < sums_.size(); ++i)
    sum.*kCounts[i] = static_cast<std::uint64_t>(std::min<Sum>(sums_[i], std::numeric_limits<std::uint64_t>::max()));
  return sum;
}

}  // namespace cairn::protocol
