#include <cairn/storage/engine/region.hpp>

#include <algorithm>
#include <limits>

#include <cairn/base/error.hpp>

namespace cairn {

Region::Region(std::uint64_t file_offset, std::uint64_t length) : begin_(file_offset), run_bytes_(length), size_bytes_(length) {}

Region::Region(std::uint64_t payload_offset, const Extents& chunk_sizes, const Extents& offsets, const Extents& lengths,
               std::size_t element_bytes) {
  if (!fits({offsets, lengths}, chunk_sizes))
    throw Error(ErrorCode::kMismatch,
                "a planner asks for " + to_string(Box{offsets, lengths}) + " of a stored chunk of sizes " + to_string(chunk_sizes));
  begin_ = payload_offset;
  run_bytes_ = element_bytes;
  size_bytes_ = static_cast<std::uint64_t>(volume(lengths)) * element_bytes;
  if (size_bytes_ == 0) return;

  // From the innermost dimension outwards. While the inner dimensions are covered completely, the
  // contiguous part grows. The remaining dimensions become loops; neighbours with an even step are
  // merged.
  std::uint64_t stride = element_bytes;
  for (std::size_t dim = chunk_sizes.size(); dim-- > 0;) {
    const auto length = static_cast<std::uint64_t>(lengths[dim]);
    begin_ += static_cast<std::uint64_t>(offsets[dim]) * stride;
    if (levels_.empty() && run_bytes_ == stride)
      run_bytes_ *= length;
    else if (!levels_.empty() && levels_.back().stride * levels_.back().count == stride)
      levels_.back().count *= length;
    else if (length > 1)
      levels_.push_back({length, stride, 0, 0});
    stride *= static_cast<std::uint64_t>(chunk_sizes[dim]);
  }
  std::uint64_t extent = run_bytes_;
  std::uint64_t bytes = run_bytes_;
  for (Level& level : levels_) {
    // From the first to the last byte of one repetition, and the bytes in it.
    level.extent = extent;
    level.bytes = bytes;
    extent += (level.count - 1) * level.stride;
    bytes *= level.count;
  }
  std::reverse(levels_.begin(), levels_.end());
}

std::vector<Region::Span> Region::spans(std::uint64_t gap_max) const {
  std::vector<Span> spans;
  if (size_bytes_ == 0) return spans;
  // Levels from `split` on have only small gaps and are read as one span.
  std::size_t split = levels_.size();
  while (split > 0 && levels_[split - 1].stride - levels_[split - 1].extent <= gap_max) --split;
  std::uint64_t extent = run_bytes_;
  std::uint64_t bytes = run_bytes_;
  if (split < levels_.size()) {
    extent = (levels_[split].count - 1) * levels_[split].stride + levels_[split].extent;
    bytes = levels_[split].count * levels_[split].bytes;
  }
  walk(0, split, begin_, 0, 0, std::numeric_limits<std::uint64_t>::max(), [&](std::uint64_t begin, std::uint64_t position) {
    spans.push_back({begin, begin + extent, position, extent == bytes});
  });
  return spans;
}

void Region::visit(std::uint64_t begin, std::uint64_t end, const Visit& visit) const {
  if (size_bytes_ == 0 || begin >= end) return;
  walk(0, levels_.size(), begin_, 0, begin, end, [&](std::uint64_t base, std::uint64_t position) {
    const std::uint64_t from = std::max(begin, base);
    const std::uint64_t to = std::min(end, base + run_bytes_);
    if (from < to) visit(from, position + (from - base), to - from);
  });
}

void Region::walk(std::size_t level, std::size_t stop, std::uint64_t base, std::uint64_t position, std::uint64_t begin,
                  std::uint64_t end, const Walk& step) const {
  if (level == stop) return step(base, position);
  const Level& loop = levels_[level];
  if (end <= base) return;
  // Goes straight to the repetitions that meet the range, because a region may have millions.
  const std::uint64_t first = begin < base + loop.extent ? 0 : (begin - base - loop.extent) / loop.stride + 1;
  const std::uint64_t last = std::min(loop.count - 1, (end - base - 1) / loop.stride);
  for (std::uint64_t i = first; i <= last; ++i)
    walk(level + 1, stop, base + i * loop.stride, position + i * loop.bytes, begin, end, step);
}

}  // namespace cairn
