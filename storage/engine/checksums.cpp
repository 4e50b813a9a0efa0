#include <cairn/storage/engine/checksums.hpp>

#include <algorithm>

#include <cairn/base/digest.hpp>
#include <cairn/base/error.hpp>

namespace cairn {

// The bytes are cut at the ends of blocks: a block's checksum must not depend on how its bytes
// arrived.
void BlockChecksums::add(ByteSpan bytes) {
  while (!bytes.empty()) {
    const auto length = static_cast<std::size_t>(std::min<std::uint64_t>(bytes.size(), block_bytes_ - in_block_));
    crc_ = crc32(crc_, bytes.subspan(0, length));
    in_block_ += length;
    if (in_block_ == block_bytes_) close_block();
    bytes = bytes.subspan(length, bytes.size() - length);
  }
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
