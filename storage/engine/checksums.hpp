// Computes the CRC-32 of each fixed-size block of a run of bytes and, on request, of each added
// part, which need not align with the blocks. For large parts these checksums are combined, so that
// each byte is read only once.
#pragma once

#include <cstdint>
#include <vector>

#include <cairn/base/bytes.hpp>

namespace cairn {

// A part of a run with a known checksum. Must lie within one block.
struct ChecksummedPart {
  std::uint64_t offset = 0;  // bytes from the start of the run
  std::uint64_t length = 0;
  std::uint32_t crc32 = 0;
};

// Bytes must be added from front to back. Not thread-safe.
class BlockChecksums {
 public:
  // Below this length in bytes, computing two checksums costs less than combining them.
  static constexpr std::uint64_t kJoinBytes = std::uint64_t{16} * 1024;

  explicit BlockChecksums(std::uint32_t block_bytes) : block_bytes_(block_bytes) {}

  // Adds the next bytes of the run.
  void add(ByteSpan bytes);
  // Adds the next `length` bytes by their checksum. The bytes must not cross the end of a block.
  void add_known(std::uint32_t crc32, std::uint64_t length);
  // Adds the next bytes of the run. `parts` lists parts with known checksums, ascending, with
  // offsets relative to the start of `bytes`.
  void add(ByteSpan bytes, const std::vector<ChecksummedPart>& parts);

  // Ends the run. The last block may be short.
  void finish();
  const std::vector<std::uint32_t>& blocks() const { return blocks_; }
  std::uint32_t whole() const { return whole_; }  // the checksum of all bytes in finished blocks
  std::uint64_t length() const { return length_; }

 private:
  void close_block();

  const std::uint32_t block_bytes_;
  std::uint32_t crc_ = 0;       // the checksum of the current block so far
  std::uint64_t in_block_ = 0;  // bytes in the current block
  std::uint32_t whole_ = 0;
  std::uint64_t length_ = 0;  // bytes in finished blocks
  std::vector<std::uint32_t> blocks_;
};

}  // namespace cairn
