// A stored tensor chunk: a zip archive as torch.save writes it. Its payload begins at an aligned
// offset of the file that contains the archive.
//
//   item_offset                                    item_offset + total_bytes()
//   | prefix                  | payload              | suffix |
//   | data.pkl, byteorder, …  | the elements         | data descriptor, directory, end records |
//                             ^ file offset: a multiple of 4096 for payloads of at least 64 KiB,
//                               otherwise of 64
//
// The payload's CRC-32 is only in the suffix, so an item can be written front to back in one pass.
// All lengths follow from dtype, sizes and offset, so the layout of a file is known before any of
// its bytes. For the bytes see storage/FORMAT.md, "Items".
//
// The functions have no side effects and are thread-safe. They throw kInvalidArgument for a
// negative size, or for a length in bytes that does not fit in 63 bits.
#pragma once

#include <cstdint>

#include <cairn/base/bytes.hpp>
#include <cairn/planning/box.hpp>
#include <cairn/planning/dtype.hpp>

namespace cairn {

inline constexpr std::uint64_t kSmallPayloadAlignment = 64;    // bytes; of the file offset of every payload
inline constexpr std::uint64_t kLargePayloadAlignment = 4096;  // bytes; for payloads of at least kLargePayloadBytes
inline constexpr std::uint64_t kLargePayloadBytes = std::uint64_t{64} * 1024;

// The lengths of an item's parts.
struct ItemLayout {
  std::uint64_t prefix_bytes = 0;   // from the start of the item to its payload
  std::uint64_t payload_bytes = 0;  // the elements, contiguous, row-major, little-endian
  std::uint64_t suffix_bytes = 0;   // from the end of the payload to the end of the item

  std::uint64_t total_bytes() const { return prefix_bytes + payload_bytes + suffix_bytes; }
};

// The lengths that do not depend on the offset of an item. `item_lengths` accepts up to 64 bits.
struct ItemLengths {
  std::uint64_t unpadded_prefix_bytes = 0;
  std::uint64_t payload_bytes = 0;
  std::uint64_t suffix_bytes = 0;

  ItemLayout at(std::uint64_t item_offset) const;
};
ItemLengths item_lengths(DType dtype, const Extents& sizes);

// Returns the layout of a chunk of sizes `sizes` that begins at `item_offset` in its file.
ItemLayout item_layout(DType dtype, const Extents& sizes, std::uint64_t item_offset);

// Returns the bytes before the payload: exactly `prefix_bytes`. They stay valid until the calling
// thread's next call of `item_prefix` or `item_suffix`.
const Bytes& item_prefix(DType dtype, const Extents& sizes, std::uint64_t item_offset);

// Returns the bytes after the payload: exactly `suffix_bytes`. `payload_crc32` is the CRC-32 of the
// payload (base/digest.hpp). They stay valid as long as those of `item_prefix`.
const Bytes& item_suffix(DType dtype, const Extents& sizes, std::uint64_t item_offset, std::uint32_t payload_crc32);

}  // namespace cairn
