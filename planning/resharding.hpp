// Finds the parts of stored chunks that fill a wanted box, so that a tensor saved in one layout can
// be loaded in any other layout.
#pragma once

#include <vector>

#include <cairn/planning/metadata.hpp>
#include <cairn/planning/plan.hpp>

namespace cairn {

// Finds the stored chunks that intersect a box, without testing every chunk. Chunks are sorted
// along the dimension in which they have the largest number of different offsets.
class ChunkIndex {
 public:
  // Borrows `chunks`. Throws kInvalidArgument if they differ in their number of dimensions.
  explicit ChunkIndex(const std::vector<Box>& chunks);
  // Returns the indices of the chunks that intersect `box`, ascending.
  std::vector<std::uint32_t> find(const Box& box) const;

 private:
  const std::vector<Box>* chunks_;
  int dim_ = 0;
  std::vector<std::uint32_t> order_;
  std::vector<std::int64_t> reach_;  // running maximum of the chunks' ends, in the order of `order_`
};

// Appends to `plan` the items that fill `wanted` (one local chunk of the tensor `dest_name`) from
// the chunks of `stored`. `index` must have been made from `stored.chunks`. Throws kMismatch if
// `wanted` differs from the stored tensor in its number of dimensions.
void append_reads(const TensorStorageMetadata& stored, const ChunkIndex& index, NameId dest_name, NameId storage_name,
                  const Box& wanted, LoadPlan& plan);

}  // namespace cairn
