#include <cairn/formats/item_archive.hpp>

#include <array>
#include <limits>
#include <string>
#include <tuple>

#include <cairn/base/digest.hpp>
#include <cairn/base/error.hpp>
#include <cairn/formats/tensor_pickle.hpp>
#include <cairn/formats/zip_format.hpp>

namespace cairn {
namespace {

// The names that torch.save uses when it writes to a stream. The small entries come first, so that
// only the payload's descriptor and the directory depend on the payload's content.
constexpr std::string_view kItemPickleName = "archive/data.pkl";
constexpr std::string_view kByteOrderName = "archive/byteorder";
constexpr std::string_view kVersionName = "archive/version";
constexpr std::string_view kPayloadName = "archive/data/0";
constexpr std::string_view kByteOrder = "little";
constexpr std::string_view kArchiveVersion = "3\n";  // format version of the archive, since PyTorch 1.6

[[noreturn]] void too_large(DType dtype, const Extents& sizes, std::uint64_t item_offset) {
  throw Error(ErrorCode::kInvalidArgument, "a chunk of " + to_string(sizes) + " elements of " + to_string(dtype) +
                                               " at file offset " + std::to_string(item_offset) +
                                               " does not fit in 63 bits: split the tensor or start another file");
}

std::uint64_t small_entry_length(std::string_view name, std::uint64_t size) {
  return zip::local_header_length(name, size) + size + zip::descriptor_length(size);
}

// Offsets from the start of the item.
struct Places {
  std::uint64_t byte_order = 0;  // of its local header
  std::uint64_t version = 0;
  std::uint64_t payload_header = 0;
};

Places places(DType dtype, const Extents& sizes) {
  Places result;
  result.byte_order = small_entry_length(kItemPickleName, tensor_pickle_length(dtype, sizes));
  result.version = result.byte_order + small_entry_length(kByteOrderName, kByteOrder.size());
  result.payload_header = result.version + small_entry_length(kVersionName, kArchiveVersion.size());
  return result;
}

void append_small_entry(Bytes& out, std::string_view name, std::string_view data) {
  zip::append_local_header(out, name, data.size(), 0);
  out.append(data);
  zip::append_descriptor(out, data.size(), crc32(0, data));
}

// A state has few shapes, and each item needs its pickle twice.
const Bytes& kept_pickle(DType dtype, const Extents& sizes) {
  thread_local std::array<std::tuple<DType, Extents, Bytes>, 16> all_kept;
  std::uint64_t mixed = static_cast<std::uint64_t>(dtype);
  for (const std::int64_t size : sizes) mixed = (mixed + static_cast<std::uint64_t>(size)) * 0x9E3779B97F4A7C15u;
  auto& kept = all_kept[mixed >> 60];
  auto& [kept_dtype, kept_sizes, pickle] = kept;
  if (kept_dtype != dtype || kept_sizes != sizes || pickle.empty()) kept = {dtype, sizes, tensor_pickle(dtype, sizes)};
  return pickle;
}

}  // namespace

// All lengths follow from dtype, sizes and offset. The elements can therefore be written before, or
// in parallel with, everything around them.
ItemLengths item_lengths(DType dtype, const Extents& sizes) {
  std::uint64_t payload = 0;
  if (__builtin_mul_overflow(static_cast<std::uint64_t>(volume(sizes)), element_size(dtype), &payload)) too_large(dtype, sizes, 0);
  return {places(dtype, sizes).payload_header + zip::local_header_length(kPayloadName, payload), payload,
          zip::descriptor_length(payload) + zip::directory_entry_length(kItemPickleName, 1, 0) +
              zip::directory_entry_length(kByteOrderName, 1, 0) + zip::directory_entry_length(kVersionName, 1, 0) +
              zip::directory_entry_length(kPayloadName, payload, 0) + zip::kEndRecordsBytes};
}

ItemLayout ItemLengths::at(std::uint64_t item_offset) const {
  // The payload is aligned within the file, not within the item.
  const std::uint64_t alignment = payload_bytes >= kLargePayloadBytes ? kLargePayloadAlignment : kSmallPayloadAlignment;
  return {unpadded_prefix_bytes + zip::padding_for(item_offset + unpadded_prefix_bytes, alignment), payload_bytes, suffix_bytes};
}

ItemLayout item_layout(DType dtype, const Extents& sizes, std::uint64_t item_offset) {
  constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  constexpr std::uint64_t kRoom = 1 << 20;  // reserve for everything around the payload
  const ItemLengths lengths = item_lengths(dtype, sizes);
  if (item_offset > kMax - kRoom || lengths.payload_bytes > kMax - kRoom - item_offset) too_large(dtype, sizes, item_offset);
  return lengths.at(item_offset);
}

Bytes item_prefix(DType dtype, const Extents& sizes, std::uint64_t item_offset) {
  const ItemLayout layout = item_layout(dtype, sizes, item_offset);
  Bytes out;
  out.reserve(layout.prefix_bytes);
  append_small_entry(out, kItemPickleName, kept_pickle(dtype, sizes));
  append_small_entry(out, kByteOrderName, kByteOrder);
  append_small_entry(out, kVersionName, kArchiveVersion);
  zip::append_local_header(out, kPayloadName, layout.payload_bytes,
                           layout.prefix_bytes - out.size() - zip::local_header_length(kPayloadName, layout.payload_bytes));
  // Other items were placed by the layout before this prefix was built.
  check_invariant(out.size() == layout.prefix_bytes, "an item's prefix is as long as its layout says");
  return out;
}

Bytes item_suffix(DType dtype, const Extents& sizes, std::uint64_t item_offset, std::uint32_t payload_crc32) {
  const Places where = places(dtype, sizes);
  const ItemLayout layout = item_layout(dtype, sizes, item_offset);
  const Bytes& pickle = kept_pickle(dtype, sizes);
  Bytes out;
  out.reserve(layout.suffix_bytes);
  zip::append_descriptor(out, layout.payload_bytes, payload_crc32);
  const auto directory = layout.prefix_bytes + layout.payload_bytes + out.size();
  zip::append_directory(out,
                        {{std::string(kItemPickleName), 0, pickle.size(), crc32(0, pickle)},
                         {std::string(kByteOrderName), where.byte_order, kByteOrder.size(), crc32(0, kByteOrder)},
                         {std::string(kVersionName), where.version, kArchiveVersion.size(), crc32(0, kArchiveVersion)},
                         {std::string(kPayloadName), where.payload_header, layout.payload_bytes, payload_crc32}},
                        directory);
  check_invariant(out.size() == layout.suffix_bytes, "an item's suffix is as long as its layout says");
  return out;
}

}  // namespace cairn
