#include <cairn/storage/engine/checksums.hpp>

#include <algorithm>

#include <cairn/base/digest.hpp>
#include <cairn/base/error.hpp>

namespace cairn {

// The bytes are cut at the ends of blocks: a block's checksum must not depend on how its bytes
// arrived.
std::uint32_t BlockChecksums::add(ByteSpan bytes, bool own) {
  std::uint32_t own_crc = 0;
  while (!bytes.empty()) {
    const auto length = static_cast<std::size_t>(std::min<std::uint64_t>(bytes.size(), block_bytes_ - in_block_));
    const ByteSpan part = bytes.subspan(0, length);
    // One pass over the bytes instead of two: combining two checksums costs less than computing one
    // over this many bytes.
    if (own && length >= kJoinBytes) {
      const std::uint32_t part_crc = crc32(0, part);
      crc_ = crc32_combine(crc_, part_crc, length);
      own_crc = crc32_combine(own_crc, part_crc, length);
    } else {
      crc_ = crc32(crc_, part);
      if (own) own_crc = crc32(own_crc, part);
    }
    in_block_ += length;
    if (in_block_ == block_bytes_) close_block();
    bytes = bytes.subspan(length, bytes.size() - length);
  }
  return own_crc;
}

void BlockChecksums::add_known(std::uint32_t part_crc, std::uint64_t length) {
  check_invariant(length <= block_bytes_ - in_block_, "a known checksum must not cross a block's end");
  crc_ = crc32_combine(crc_, part_crc, length);
  in_block_ += length;
  if (in_block_ == block_bytes_) close_block();
}

void BlockChecksums::add(ByteSpan bytes, const std::vector<ChecksummedPart>& parts) {
  std::uint64_t done = 0;
  for (const ChecksummedPart& part : parts) {
    check_invariant(part.offset >= done && part.offset + part.length <= bytes.size(),
                    "known checksums must ascend within the bytes");
    add(bytes.subspan(done, part.offset - done));
    add_known(part.crc32, part.length);
    done = part.offset + part.length;
  }
  add(bytes.subspan(done, bytes.size() - done));
}

void BlockChecksums::finish() {
  if (in_block_ > 0) close_block();
}

void BlockChecksums::close_block() {
  blocks_.push_back(crc_);
  // The checksum of the file follows from those of its blocks, without another pass.
  whole_ = crc32_combine(whole_, crc_, in_block_);
  length_ += in_block_;
  crc_ = 0;
  in_block_ = 0;
}

}  // namespace cairn
