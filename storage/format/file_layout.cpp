#include <cairn/storage/format/file_layout.hpp>

#include <algorithm>
#include <limits>

#include <cairn/base/error.hpp>

namespace cairn {
namespace {

// Offsets stay below 2^63, because file systems use signed 64-bit offsets.
constexpr std::uint64_t kFileBytesMax = std::numeric_limits<std::int64_t>::max();

// An item counts as this many bytes more than its elements, so that empty items are spread as well.
constexpr std::uint64_t kItemBytes = 512;

// Every rank and the coordinator compute this layout alone and must get the same one. It depends on
// the plan only.
void append_tensor(const SavePlan& plan, std::uint32_t item, FileLayout& file) {
  const WriteItem& written = plan.items[item];
  PlacedTensor placed;
  placed.item = item;
  placed.offset = file.tensors_end;
  placed.layout = item_layout(written.properties.dtype, written.chunk.sizes, placed.offset);
  if (placed.layout.payload_bytes > kFileBytesMax || placed.layout.total_bytes() > kFileBytesMax - placed.offset)
    throw Error(ErrorCode::kInvalidArgument, "cannot lay out \"" + plan.names[written.name] + "\" at offset " +
                                                 std::to_string(placed.offset) + ": the file would exceed 2^63 bytes");
  file.tensors_end = placed.end();
  file.tensors.push_back(placed);
}

void append_item(const SavePlan& plan, std::uint32_t item, bool compressed, FileLayout& file) {
  const bool is_bytes = plan.items[item].type == WriteItemType::kByteIO;
  if (!is_bytes) {
    append_tensor(plan, item, file);  // checks it in any case
    if (!compressed) return;
    file.tensors.clear();
    file.tensors_end = 0;
  }
  file.unsized_items.push_back(item);
}

}  // namespace

std::vector<FileLayout> layout_files(const SavePlan& plan, std::size_t count, bool compressed) {
  const std::size_t items = plan.items.size();
  if (items > std::numeric_limits<std::uint32_t>::max())
    throw Error(ErrorCode::kInvalidArgument, "cannot lay out a plan of " + std::to_string(items) + " items");
  // Bytes objects are never frozen: their serialised form says little about their value.
  const auto is_frozen = [](const WriteItem& item) { return item.frozen && item.type != WriteItemType::kByteIO; };
  const auto weight = [](const WriteItem& item) {
    // Not those of bytes objects: the coordinator may not know them.
    return (item.type == WriteItemType::kByteIO ? 0 : item.payload_bytes()) + kItemBytes;
  };
  std::uint64_t all_bytes = 0, frozen_bytes = 0;
  for (const WriteItem& item : plan.items) {
    all_bytes += weight(item);
    frozen_bytes += is_frozen(item) ? weight(item) : 0;
  }
  const bool has_both = count != 0 && frozen_bytes > 0 && frozen_bytes < all_bytes;
  if (has_both) count = std::max<std::size_t>(count, 2);
  std::vector<FileLayout> files(count == 0 ? items : std::min(count, items));
  // The first file that is not for frozen tensors alone.
  const std::size_t first_other =
      has_both ? std::clamp<std::size_t>(frozen_bytes / (all_bytes / files.size() + 1), 1, files.size() - 1) : 0;
  if (files.size() == 1 && !compressed) files[0].tensors.reserve(items);
  std::vector<std::uint64_t> bytes(files.size());
  for (std::uint32_t item = 0; item < items; ++item) {
    const bool is_bytes = plan.items[item].type == WriteItemType::kByteIO;
    std::size_t file = item;  // one for each item
    if (count != 0) {
      const bool is_apart = has_both && is_frozen(plan.items[item]);
      const auto first = bytes.begin() + static_cast<std::ptrdiff_t>(is_apart ? 0 : first_other);
      const auto end = is_apart ? bytes.begin() + static_cast<std::ptrdiff_t>(first_other) : bytes.end();
      file = static_cast<std::size_t>((is_bytes ? first : std::min_element(first, end)) - bytes.begin());
    }
    append_item(plan, item, compressed, files[file]);
    bytes[file] += weight(plan.items[item]);
  }
  for (FileLayout& file : files)
    // Bytes objects follow the tensors, which loads read first.
    std::stable_partition(file.unsized_items.begin(), file.unsized_items.end(),
                          [&](std::uint32_t item) { return plan.items[item].type != WriteItemType::kByteIO; });
  // Fewer tensors than files.
  files.erase(std::remove_if(files.begin(), files.end(),
                             [](const FileLayout& file) { return file.tensors.empty() && file.unsized_items.empty(); }),
              files.end());
  return files;
}

std::vector<PlacedItem> place_unsized(const FileLayout& file, const std::vector<std::uint64_t>& lengths) {
  if (lengths.size() != file.unsized_items.size())
    throw Error(ErrorCode::kMismatch, "a file was reported with the lengths of " + std::to_string(lengths.size()) +
                                          " items, but its plan has " + std::to_string(file.unsized_items.size()) +
                                          " that need one: do all ranks use the same options?");
  std::vector<PlacedItem> placed;
  placed.reserve(lengths.size());
  std::uint64_t offset = file.tensors_end;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] > kFileBytesMax - offset)
      throw Error(ErrorCode::kInvalidArgument, "an item of " + std::to_string(lengths[i]) + " bytes at offset " +
                                                   std::to_string(offset) + " would make its file exceed 2^63 bytes");
    placed.push_back({file.unsized_items[i], offset, lengths[i]});
    offset += lengths[i];
  }
  return placed;
}

}  // namespace cairn
