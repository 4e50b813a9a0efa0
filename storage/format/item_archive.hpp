// One stored tensor chunk: a zip archive as torch.save writes it, whose payload lies on an aligned offset of the file that holds
// it.
//
//   item_offset                                    item_offset + total_bytes()
//   | prefix                  | payload              | suffix |
//   | data.pkl, byteorder, …  | the elements         | data descriptor, central directory, end records |
//                             ^ file offset: a multiple of 4096 from 64 KiB of payload on, of 64 below
//
// The payload's CRC-32 stands in the suffix only, so that an item is written front to back in one pass. All lengths follow from
// dtype, sizes and offset: the layout of a file is known before any byte of it is. Bytes: storage/FORMAT.md, "Items".
//
// Pure functions, thread-safe. kInvalidArgument for a negative size, or one whose bytes do not fit in 63 bits.
#pragma once

#include <cstdint>

#include <cairn/base/bytes.hpp>
#include <cairn/planning/box.hpp>
#include <cairn/planning/dtype.hpp>

namespace cairn {

inline constexpr std::uint64_t kSmallPayloadAlignment = 64;    // bytes, of the file offset of every payload
inline constexpr std::uint64_t kLargePayloadAlignment = 4096;  // bytes, of payloads of at least:
inline constexpr std::uint64_t kLargePayloadBytes = 64 * 1024;

// How many bytes each part of an item takes.
struct ItemLayout {
  std::uint64_t prefix_bytes = 0;   // from the item's begin to its payload
  std::uint64_t payload_bytes = 0;  // the elements, contiguous, row-major, little-endian
  std::uint64_t suffix_bytes = 0;   // from the payload's end to the item's end

  std::uint64_t total_bytes() const { return prefix_bytes + payload_bytes + suffix_bytes; }
};

// The layout of a chunk of `sizes` elements that begins `item_offset` bytes into its file.
ItemLayout item_layout(DType dtype, const Extents& sizes, std::uint64_t item_offset);

// What comes before the payload: exactly `prefix_bytes` long.
Bytes item_prefix(DType dtype, const Extents& sizes, std::uint64_t item_offset);

// What comes after it: exactly `suffix_bytes` long. `payload_crc32`: CRC-32 (base/digest.hpp) of the payload.
Bytes item_suffix(DType dtype, const Extents& sizes, std::uint64_t item_offset, std::uint32_t payload_crc32);

}  // namespace cairn
