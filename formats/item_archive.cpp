#include <cairn/formats/item_archive.hpp>

#include <array>
#include <limits>
#include <string>

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

// An item of one dtype and size: its lengths, and the bytes around its payload at its last offset.
struct Frame {
  DType dtype = DType::kUnknown;
  Extents sizes;
  ItemLengths lengths;
  Bytes prefix;
  Bytes suffix;
};

// All lengths follow from dtype, sizes and offset. The elements can therefore be written before, or
// in parallel with, everything around them.
ItemLengths measure(DType dtype, const Extents& sizes) {
  std::uint64_t payload = 0;
  if (__builtin_mul_overflow(static_cast<std::uint64_t>(volume(sizes)), element_size(dtype), &payload)) too_large(dtype, sizes, 0);
  return {places(dtype, sizes).payload_header + zip::local_header_length(kPayloadName, payload), payload,
          zip::descriptor_length(payload) + zip::directory_entry_length(kItemPickleName, 1, 0) +
              zip::directory_entry_length(kByteOrderName, 1, 0) + zip::directory_entry_length(kVersionName, 1, 0) +
              zip::directory_entry_length(kPayloadName, payload, 0) + zip::kEndRecordsBytes};
}

// A state has few sizes of tensors.
Frame& frame_of(DType dtype, const Extents& sizes) {
  thread_local std::array<Frame, 16> frames;
  std::uint64_t mixed = static_cast<std::uint64_t>(dtype);
  for (const std::int64_t size : sizes) mixed = (mixed + static_cast<std::uint64_t>(size)) * 0x9E3779B97F4A7C15u;
  Frame& frame = frames[mixed >> 60];
  if (frame.dtype != dtype || frame.sizes != sizes || frame.lengths.suffix_bytes == 0)
    frame = {dtype, sizes, measure(dtype, sizes), {}, {}};
  return frame;
}

ItemLayout layout_in(const Frame& frame, std::uint64_t item_offset) {
  constexpr std::uint64_t kMax = std::numeric_limits<std::int64_t>::max() - (1 << 20);  // a reserve for all around the payload
  if (item_offset > kMax || frame.lengths.payload_bytes > kMax - item_offset) too_large(frame.dtype, frame.sizes, item_offset);
  return frame.lengths.at(item_offset);
}

// Neighbours of one size have the same padding, and so the same bytes around their payloads. The
// checksum of the payload is left open.
Frame& frame_at(DType dtype, const Extents& sizes, std::uint64_t item_offset) {
  Frame& frame = frame_of(dtype, sizes);
  const ItemLayout layout = layout_in(frame, item_offset);
  Bytes &prefix = frame.prefix, &suffix = frame.suffix;
  if (prefix.size() == layout.prefix_bytes && suffix.size() == layout.suffix_bytes) return frame;
  const Bytes pickle = tensor_pickle(dtype, sizes);
  prefix.clear();
  append_small_entry(prefix, kItemPickleName, pickle);
  append_small_entry(prefix, kByteOrderName, kByteOrder);
  append_small_entry(prefix, kVersionName, kArchiveVersion);
  zip::append_local_header(prefix, kPayloadName, layout.payload_bytes,
                           layout.prefix_bytes - prefix.size() - zip::local_header_length(kPayloadName, layout.payload_bytes));
  const Places where = places(dtype, sizes);
  suffix.clear();
  zip::append_descriptor(suffix, layout.payload_bytes, 0);
  const auto directory = layout.prefix_bytes + layout.payload_bytes + suffix.size();
  zip::append_directory(suffix,
                        {{std::string(kItemPickleName), 0, pickle.size(), crc32(0, pickle)},
                         {std::string(kByteOrderName), where.byte_order, kByteOrder.size(), crc32(0, kByteOrder)},
                         {std::string(kVersionName), where.version, kArchiveVersion.size(), crc32(0, kArchiveVersion)},
                         {std::string(kPayloadName), where.payload_header, layout.payload_bytes, 0}},
                        directory);
  // Other items were placed by the layout before these bytes were built.
  check_invariant(prefix.size() == layout.prefix_bytes, "an item's prefix is as long as its layout says");
  check_invariant(suffix.size() == layout.suffix_bytes, "an item's suffix is as long as its layout says");
  return frame;
}

}  // namespace

ItemLengths item_lengths(DType dtype, const Extents& sizes) { return frame_of(dtype, sizes).lengths; }

ItemLayout ItemLengths::at(std::uint64_t item_offset) const {
  // The payload is aligned within the file, not within the item.
  const std::uint64_t alignment = payload_bytes >= kLargePayloadBytes ? kLargePayloadAlignment : kSmallPayloadAlignment;
  return {unpadded_prefix_bytes + zip::padding_for(item_offset + unpadded_prefix_bytes, alignment), payload_bytes, suffix_bytes};
}

ItemLayout item_layout(DType dtype, const Extents& sizes, std::uint64_t item_offset) {
  return layout_in(frame_of(dtype, sizes), item_offset);
}

const Bytes& item_prefix(DType dtype, const Extents& sizes, std::uint64_t item_offset) {
  return frame_at(dtype, sizes, item_offset).prefix;
}

const Bytes& item_suffix(DType dtype, const Extents& sizes, std::uint64_t item_offset, std::uint32_t payload_crc32) {
  Frame& frame = frame_at(dtype, sizes, item_offset);
  constexpr std::size_t kDescriptorCrcAt = 4, kDirectoryCrcAt = 16;
  Bytes crc;
  zip::put_u32(crc, payload_crc32);
  if (frame.lengths.payload_bytes > 0) frame.suffix.replace(kDescriptorCrcAt, crc.size(), crc);
  // The payload's entry is the last of the directory.
  const std::uint64_t from_end = zip::kEndRecordsBytes + zip::directory_entry_length(kPayloadName, frame.lengths.payload_bytes, 0);
  frame.suffix.replace(frame.suffix.size() - from_end + kDirectoryCrcAt, crc.size(), crc);
  return frame.suffix;
}

}  // namespace cairn
