// Where each item of a plan lies in the data files of its rank. Pure: the rank that writes and the coordinator that records derive
// the same offsets from the same plan, so that they need not travel.
//
//   tensor | tensor | … | bytes object | bytes object | … | trailer
//
// Tensors come first, in the order of the plan, one right after the other; what they take follows from the plan. Bytes objects come
// after them, in the order of the plan; how long they are is known only when they are written.
#pragma once

#include <cstdint>
#include <vector>

#include <cairn/planning/plan.hpp>
#include <cairn/storage/format/item_archive.hpp>

namespace cairn {

// A tensor chunk in its file. Offsets are bytes from the start of the file.
struct PlacedTensor {
  std::uint32_t item = 0;  // index into the plan's items
  std::uint64_t offset = 0;
  ItemLayout layout;

  std::uint64_t payload_offset() const { return offset + layout.prefix_bytes; }
  std::uint64_t payload_end() const { return payload_offset() + layout.payload_bytes; }
  std::uint64_t end() const { return offset + layout.total_bytes(); }
};

struct FileLayout {
  std::vector<PlacedTensor> tensors;       // ascending offsets, without holes, from 0
  std::vector<std::uint32_t> bytes_items;  // indices into the plan's items
  std::uint64_t tensors_end = 0;           // where the first bytes object begins
};

// A bytes object in its file, once its length is known.
struct PlacedBytes {
  std::uint32_t item = 0;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

// The files of one rank: one for all items, or one for each. No items: no files. Throws kInvalidArgument if an item cannot be
// stored.
std::vector<FileLayout> layout_files(const SavePlan& plan, bool single_file_per_rank);

// Where the bytes objects of a file lie. `lengths`: one per entry of `bytes_items`; throws kMismatch if there are more or fewer.
std::vector<PlacedBytes> place_bytes(const FileLayout& file, const std::vector<std::uint64_t>& lengths);

}  // namespace cairn
