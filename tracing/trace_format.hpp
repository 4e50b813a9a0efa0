// How records lie in a trace file. Internal; docs/tracing.md specifies it.
//
//   | mark "CTrc" | length u32 | CRC-32 u32 | TraceRecord (Protobuf), `length` bytes |       little-endian, one after the other
//
// The CRC-32 is over the length's four bytes and the record. By the mark a reader finds the next record after damage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include <cairn/base/bytes.hpp>
#include <cairn/base/digest.hpp>

namespace cairn::trace_format {

inline constexpr std::string_view kMark = "CTrc";
inline constexpr std::size_t kFrameBytes = 12;
inline constexpr std::uint32_t kRecordBytesMax = 64 * 1024;
inline constexpr std::uint32_t kNamesMax = 16 * 1024;  // of one file
inline constexpr std::size_t kNameBytesMax = 4096;
inline constexpr std::size_t kContentPieceBytesMax = 60 * 1024;

inline void put_u32(std::uint32_t value, char* to) {
  for (int i = 0; i < 4; ++i) to[i] = static_cast<char>(value >> (8 * i));
}
inline std::uint32_t get_u32(const char* from) {
  std::uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value |= std::uint32_t{static_cast<unsigned char>(from[i])} << (8 * i);
  return value;
}
// `frame`: from the mark on, with the whole record behind it.
inline std::uint32_t checksum(const char* frame, std::uint32_t length) {
  return crc32(crc32(0, ByteSpan(frame + 4, 4)), ByteSpan(frame + kFrameBytes, length));
}

}  // namespace cairn::trace_format
