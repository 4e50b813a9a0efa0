// The end of every data file: checksums fine enough to check a part of it. PyTorch reads items by
// offset and length and ignores the trailer. For the bytes see storage/FORMAT.md, "Trailer".
//
//   content | body (Protobuf) | footer
//
// The functions have no side effects and are thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <cairn/base/bytes.hpp>
#include <cairn/base/digest.hpp>

namespace cairn {

// Size in bytes of the checksum blocks that Cairn writes. Readers accept any power of two from
// kChecksumBlockBytesMin to kChecksumBlockBytesMax. A partial read checks at most one extra block
// at each end. The checksums take 1/32768 of the file.
inline constexpr std::uint32_t kChecksumBlockBytes = 128 * 1024;
inline constexpr std::uint32_t kChecksumBlockBytesMin = 4096;
inline constexpr std::uint32_t kChecksumBlockBytesMax = 4u << 20;  // fits into a staging block of the maximum size

inline constexpr std::uint32_t kTrailerVersion = 1;
inline constexpr std::size_t kTrailerFooterBytes = 28;

struct Trailer {
  std::string save_id;
  std::uint64_t content_bytes = 0;  // bytes before the trailer
  std::uint32_t checksum_block_bytes = kChecksumBlockBytes;
  std::vector<std::uint32_t> block_crc32;  // one per block of the content, in order; the last block may be shorter
};

// Returns body and footer. Throws InternalError if the description is inconsistent.
Bytes encode_trailer(const Trailer& trailer);

// Calls `damaged(offset, block)` for each checksum block of `bytes` that does not match. `bytes`
// begin at offset `begin` of the file, and consist of whole blocks.
template <class Damaged>
void check_blocks(const std::vector<std::uint32_t>& block_crc32, std::uint64_t block_bytes, std::uint64_t begin, ByteSpan bytes,
                  Damaged damaged) {
  for (std::uint64_t at = 0; at < bytes.size(); at += block_bytes) {
    const ByteSpan block = bytes.subspan(at, std::min<std::uint64_t>(block_bytes, bytes.size() - at));
    if (crc32(0, block) != block_crc32[static_cast<std::size_t>((begin + at) / block_bytes)]) damaged(begin + at, block);
  }
}

// Returns the CRC-32 of a whole file, from the block checksums in `trailer` and the bytes of the
// trailer.
std::uint32_t whole_crc32(const Trailer& trailer, ByteSpan trailer_bytes);

// Returns the length of the trailer whose last kTrailerFooterBytes are `footer`. Throws as
// decode_trailer does.
std::uint64_t trailer_length(ByteSpan footer, std::uint64_t file_bytes, const std::string& object);

// Decodes the bytes that follow the content. `file_bytes` is the length of the whole file. `object`
// names the file in error texts. Throws kCorrupt with the fault, kUnsupported for a newer version.
Trailer decode_trailer(ByteSpan bytes, std::uint64_t file_bytes, const std::string& object);

}  // namespace cairn
