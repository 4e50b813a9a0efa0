// The position of each item of a plan in the data files of its rank. Pure functions: the writing
// rank and the coordinator derive the same offsets from the same plan, so the offsets need not be
// sent.
//
//   tensor | tensor | … | bytes object | bytes object | … | trailer
//
// Tensors come first, in the order of the plan and without gaps; their lengths follow from the
// plan. Bytes objects come next, in the order of the plan; their lengths are known only when they
// are written. The same is true of compressed tensors, which precede the bytes objects.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <cairn/formats/item_archive.hpp>
#include <cairn/planning/plan.hpp>

namespace cairn {

// A tensor chunk in a file. Offsets are bytes from the start of the file.
struct PlacedTensor {
  std::uint32_t item = 0;  // index into the plan's items
  std::uint64_t offset = 0;
  ItemLayout layout;

  std::uint64_t payload_offset() const { return offset + layout.prefix_bytes; }
  std::uint64_t payload_end() const { return payload_offset() + layout.payload_bytes; }
  std::uint64_t end() const { return offset + layout.total_bytes(); }
};

struct FileLayout {
  // The bytes before the first tensor. If there are any, the file is in the safetensors format:
  // its tensors are bare elements, and it has no trailer.
  std::string head;
  std::vector<PlacedTensor> tensors;  // ascending offsets from the end of the head, without holes
  // Items whose lengths are known only when they are written, as indices into the plan's items:
  // compressed tensors, then bytes objects.
  std::vector<std::uint32_t> unsized_items;
  std::uint64_t tensors_end = 0;  // offset of the first of `unsized_items`
};

// A file that a rank writes.
struct WriteFile {
  std::string name;  // object name, relative to the checkpoint
  FileLayout layout;
};

// An item of `unsized_items` in a file, with its length.
struct PlacedItem {
  std::uint32_t item = 0;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

// Lays out one rank's items in `files` files, or in fewer if there are fewer items; 0: one for each
// item. Tensors are spread so that files are about equally long; bytes objects are in the first
// file. Frozen tensors have the first of the files for themselves, one at least, and so have the
// other items; bytes objects are then in the first of theirs. With `compressed`, tensors are
// `unsized_items`. Returns no files if the plan has no items. Throws kInvalidArgument if an item
// cannot be stored.
std::vector<FileLayout> layout_files(const SavePlan& plan, std::size_t files, bool compressed = false);

// Returns the positions of a file's `unsized_items`. Throws kMismatch unless `lengths` has one
// entry for each of them.
std::vector<PlacedItem> place_unsized(const FileLayout& file, const std::vector<std::uint64_t>& lengths);

}  // namespace cairn
