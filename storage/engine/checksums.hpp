// CRC-32 of each fixed-size block of a run of bytes, and of parts of the run that do not keep to the blocks, with every byte
// checksummed once: checksums are joined from those of smaller parts.
#pragma once

#include <cstdint>
#include <vector>

#include <cairn/base/bytes.hpp>

namespace cairn {

// A part of a run whose checksum is known. Lies within one block.
struct ChecksummedPart {
  std::uint64_t offset = 0;  // bytes from where the run begins
  std::uint64_t length = 0;
  std::uint32_t crc32 = 0;
};

// Fed from front to back. Not thread-safe.
class BlockChecksums {
 public:
  // Parts shorter than this are cheaper to checksum again than to join.
  static constexpr std::uint64_t kJoinBytes = 16 * 1024;

  explicit BlockChecksums(std::uint32_t block_bytes) : block_bytes_(block_bytes) {}

  // The next bytes of the run. Returns the CRC-32 of `bytes` alone, if `own` is set; 0 otherwise.
  std::uint32_t add(ByteSpan bytes, bool own = false);
  // The next `length` bytes have this checksum; they end in the block they begin in.
  void add_known(std::uint32_t crc32, std::uint64_t length);
  // The next bytes of the run, parts of which are known. `parts` are ascending, their offsets relative to the beginning of `bytes`.
  void add(ByteSpan bytes, const std::vector<ChecksummedPart>& parts);

  // No more bytes: the last block may be short.
  void finish();
  const std::vector<std::uint32_t>& blocks() const { return blocks_; }
  std::uint32_t whole() const { return whole_; }  // of all bytes of finished blocks
  std::uint64_t length() const { return length_; }

 private:
  void close_block();

  const std::uint32_t block_bytes_;
  std::uint32_t crc_ = 0;       // of the block that has begun
  std::uint64_t in_block_ = 0;  // bytes of it
  std::uint32_t whole_ = 0;
  std::uint64_t length_ = 0;  // bytes of finished blocks
  std::vector<std::uint32_t> blocks_;
};

}  // namespace cairn
