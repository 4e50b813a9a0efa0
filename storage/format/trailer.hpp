// The end of every data file: what the file holds, and checksums fine enough to check a part of it. PyTorch, which reads items by
// offset and length, never looks here. Bytes: storage/FORMAT.md, "Trailer".
//
//   content | body (Protobuf) | footer
//
// Pure functions, thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <cairn/base/bytes.hpp>
#include <cairn/planning/box.hpp>
#include <cairn/planning/dtype.hpp>

namespace cairn {

// What Cairn writes; readers take any power of two from kChecksumBlockBytesMin to kChecksumBlockBytesMax. A partial read checks at
// most one block more than it needs at each end; the checksums take 1/32768 of the file.
inline constexpr std::uint32_t kChecksumBlockBytes = 128 * 1024;
inline constexpr std::uint32_t kChecksumBlockBytesMin = 4096;
inline constexpr std::uint32_t kChecksumBlockBytesMax = 4u << 20;  // fits into a staging block that is as large as can be

inline constexpr std::uint32_t kTrailerVersion = 1;
inline constexpr std::size_t kTrailerFooterBytes = 28;

// One item of a file. Offsets are bytes from the start of the file.
struct TrailerItem {
  std::string fqn;
  bool is_bytes = false;  // a bytes object; then dtype, size and chunk mean nothing
  DType dtype = DType::kFloat32;
  Extents size;              // of the global tensor
  Box chunk;                 // within it
  std::uint64_t offset = 0;  // of what PyTorch reads
  std::uint64_t length = 0;
  std::uint64_t payload_offset = 0;  // of the raw elements; bytes objects: as offset
  std::uint64_t payload_bytes = 0;   // of the raw elements; bytes objects: as length
  std::uint32_t payload_crc32 = 0;
};

struct Trailer {
  std::string save_id;
  int rank = 0;
  std::uint64_t content_bytes = 0;  // before the trailer
  std::uint32_t checksum_block_bytes = kChecksumBlockBytes;
  std::vector<std::uint32_t> block_crc32;  // of each block of the content, in order; the last may be shorter
  std::vector<TrailerItem> items;          // in the order of the file
};

// Body and footer. Throws InternalError if what is described cannot be a file.
Bytes encode_trailer(const Trailer& trailer);

// The inverse, of exactly the bytes that follow the content. `file_bytes`: the length of the whole file. Throws kCorrupt, with what
// is wrong, and kUnsupported for a newer version. `object` names the file in texts.
Trailer decode_trailer(ByteSpan bytes, std::uint64_t file_bytes, const std::string& object);

}  // namespace cairn
