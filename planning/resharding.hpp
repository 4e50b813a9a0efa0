// Which parts of which stored chunks fill a wanted box: loading from any layout into any layout.
#pragma once

#include <string>
#include <vector>

#include <cairn/planning/metadata.hpp>
#include <cairn/planning/plan.hpp>

namespace cairn {

// Finds stored chunks that meet a box faster than by trying all: chunks are sorted along the dimension that splits them most.
class ChunkIndex {
 public:
  explicit ChunkIndex(const std::vector<Box>& chunks);  // borrows `chunks`
  // Indices of the chunks that intersect `box`, ascending.
  std::vector<std::uint32_t> find(const Box& box) const;

 private:
  const std::vector<Box>* chunks_;
  int dim_ = 0;
  std::vector<std::uint32_t> order_;
  std::vector<std::int64_t> reach_;  // running maximum of the chunks' ends, in `order_`
};

// Appends to `plan` the items that fill `wanted` (one local chunk of tensor `dest`) from the stored chunks of `stored`.
void append_reads(const TensorStorageMetadata& stored, const ChunkIndex& index, NameId dest_name, NameId storage_name,
                  const Box& wanted, LoadPlan& plan);

}  // namespace cairn
