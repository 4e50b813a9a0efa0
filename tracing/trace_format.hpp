// The layout of records in a trace file. Internal; docs/tracing.md specifies it.
//
//   | mark "CTrc" | length u32 | CRC-32 u32 | TraceRecord (Protobuf), `length` bytes |
//
// Integers are little-endian, and records follow one another without gaps. The CRC-32 covers the
// four bytes of the length and the record. After damage, a reader searches for the mark to find the
// next record.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include <cairn/base/bytes.hpp>
#include <cairn/base/digest.hpp>

namespace cairn::trace_format {

inline constexpr std::string_view kMark = "CTrc";
inline constexpr std::size_t kFrameBytes = 12;
inline constexpr std::uint32_t kRecordBytesMax = 64 * 1024;
inline constexpr std::uint32_t kNamesMax = 16 * 1024;  // per file
inline constexpr std::size_t kNameBytesMax = 4096;

inline void put_u32(std::uint32_t value, char* to) {
  for (int i = 0; i < 4; ++i) to[i] = static_cast<char>(value >> (8 * i));
}
inline std::uint32_t get_u32(const char* from) {
  std::uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value |= std::uint32_t{static_cast<unsigned char>(from[i])} << (8 * i);
  return value;
}
// `frame` points to the mark; the whole record follows.
inline std::uint32_t checksum(const char* frame, std::uint32_t length) {
  char together[256];
  if (length > sizeof together - 4) return crc32(crc32(0, ByteSpan(frame + 4, 4)), ByteSpan(frame + kFrameBytes, length));
  // Most records are short. Copying one costs less than a second call of crc32.
  std::memcpy(together, frame + 4, 4);
  std::memcpy(together + 4, frame + kFrameBytes, length);
  return crc32(0, ByteSpan(together, 4 + length));
}

}  // namespace cairn::trace_format
