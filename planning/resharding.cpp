#include <cairn/planning/resharding.hpp>

#include <algorithm>
#include <numeric>

#include <cairn/base/error.hpp>

namespace cairn {
namespace {

std::size_t distinct_offsets(const std::vector<Box>& chunks, std::size_t dim) {
  std::vector<std::int64_t> offsets;
  offsets.reserve(chunks.size());
  for (const Box& chunk : chunks) offsets.push_back(chunk.offsets[dim]);
  std::sort(offsets.begin(), offsets.end());
  return static_cast<std::size_t>(std::unique(offsets.begin(), offsets.end()) - offsets.begin());
}

}  // namespace

ChunkIndex::ChunkIndex(const std::vector<Box>& chunks) : chunks_(&chunks) {
  if (chunks.empty()) return;
  const std::size_t dims = chunks.front().offsets.size();
  for (const Box& chunk : chunks) {
    if (chunk.offsets.size() != dims || chunk.sizes.size() != dims)
      throw Error(ErrorCode::kInvalidArgument, "cannot index the chunks of a tensor: " + to_string(chunks.front()) + " and " +
                                                   to_string(chunk) + " differ in their number of dimensions");
  }
  // The dimension with the most distinct offsets separates the chunks best.
  std::size_t most = 0;
  for (std::size_t dim = 0; dim < dims && chunks.size() > 1; ++dim) {
    const std::size_t distinct = distinct_offsets(chunks, dim);
    if (distinct > most) {
      most = distinct;
      dim_ = static_cast<int>(dim);
    }
  }
  order_.resize(chunks.size());
  std::iota(order_.begin(), order_.end(), 0u);
  // Without something to sort by, `find` tries all chunks.
  if (dims == 0 || chunks.size() == 1) return;
  const auto dim = static_cast<std::size_t>(dim_);
  std::stable_sort(order_.begin(), order_.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return chunks[a].offsets[dim] < chunks[b].offsets[dim]; });
  reach_.reserve(chunks.size());
  for (const std::uint32_t chunk : order_) {
    const std::int64_t end = chunks[chunk].offsets[dim] + chunks[chunk].sizes[dim];
    reach_.push_back(reach_.empty() ? end : std::max(reach_.back(), end));
  }
}

std::vector<std::uint32_t> ChunkIndex::find(const Box& box) const {
  std::vector<std::uint32_t> found;
  auto candidate = order_.begin();
  auto end = order_.end();
  if (!reach_.empty()) {
    if (box.offsets.size() <= static_cast<std::size_t>(dim_)) return found;
    // Chunks before the first one that reaches past the box's start cannot intersect it, nor can
    // chunks that start at or after its end.
    const auto dim = static_cast<std::size_t>(dim_);
    const std::int64_t box_begin = box.offsets[dim];
    const std::int64_t box_end = box_begin + box.sizes[dim];
    candidate += std::upper_bound(reach_.begin(), reach_.end(), box_begin) - reach_.begin();
    end = std::partition_point(candidate, end, [&](std::uint32_t chunk) { return (*chunks_)[chunk].offsets[dim] < box_end; });
  }
  for (; candidate < end; ++candidate)
    if (overlaps((*chunks_)[*candidate], box)) found.push_back(*candidate);
  // In the order of the metadata, so that plans do not depend on how the index is sorted.
  std::sort(found.begin(), found.end());
  return found;
}

void append_reads(const TensorStorageMetadata& stored, const ChunkIndex& index, NameId dest_name, NameId storage_name,
                  const Box& wanted, LoadPlan& plan) {
  if (wanted.offsets.size() != stored.size.size() || wanted.sizes.size() != stored.size.size())
    throw Error(ErrorCode::kMismatch, "cannot load " + to_string(wanted) + " of a tensor of size " + to_string(stored.size) +
                                          ": they differ in their number of dimensions");
  const auto difference = [](const Extents& a, const Extents& b) {
    Extents result = a;
    for (std::size_t dim = 0; dim < result.size(); ++dim) result[dim] -= b[dim];
    return result;
  };
  for (const std::uint32_t chunk : index.find(wanted)) {
    const Box& source = stored.chunks[chunk];
    std::optional<Box> common = intersect(source, wanted);
    check_invariant(common.has_value(), "a chunk found for a box does not meet it");
    ReadItem item;
    item.type = LoadItemType::kTensor;
    item.dest_name = dest_name;
    item.storage_name = storage_name;
    item.dest_chunk_offset = wanted.offsets;
    item.dest_offsets = difference(common->offsets, wanted.offsets);
    item.storage_chunk_offset = source.offsets;
    item.storage_offsets = difference(common->offsets, source.offsets);
    item.lengths = std::move(common->sizes);
    item.storage_chunk = chunk;
    plan.items.push_back(std::move(item));
  }
}

}  // namespace cairn
