#include <cairn/storage/engine/file_appender.hpp>

#include <algorithm>
#include <cstring>
#include <utility>

#include <cairn/storage/format/trailer.hpp>

namespace cairn {

FileAppender::FileAppender(std::size_t alignment_bytes, StagingBlock& memory, std::size_t block_bytes, Write write,
                           std::uint64_t begin, std::size_t used, const std::vector<ChecksummedPart>& parts)
    : alignment_bytes_(alignment_bytes),
      memory_(memory),
      block_bytes_(block_bytes),
      write_(std::move(write)),
      begin_(begin),
      used_(used),
      checksums_(kChecksumBlockBytes) {
  checksums_.add(memory.bytes(0, used_), parts);
}

void FileAppender::append(ByteSpan bytes) {
  put(bytes, [&](ByteSpan part) { checksums_.add(part); });
}

const BlockChecksums& FileAppender::end_content() {
  checksums_.finish();
  return checksums_;
}

void FileAppender::append_trailer(ByteSpan bytes) {
  put(bytes, [](ByteSpan) {});
}

std::uint64_t FileAppender::finish() {
  const std::uint64_t length = position();
  // Direct I/O writes whole units. Closing the file cuts it to its true length.
  const std::size_t padded = (used_ + alignment_bytes_ - 1) / alignment_bytes_ * alignment_bytes_;
  std::memset(memory_.data() + used_, 0, padded - used_);
  used_ = padded;
  if (used_ > 0) flush();
  return length;
}

template <class Account>
void FileAppender::put(ByteSpan bytes, const Account& account) {
  while (!bytes.empty()) {
    if (used_ == block_bytes_) flush();
    // In parts small enough to stay in the CPU cache between copy and checksum.
    const std::size_t length = std::min({bytes.size(), block_bytes_ - used_, std::size_t{kChecksumBlockBytes}});
    const MutableByteSpan part = memory_.bytes(used_, length);
    std::memcpy(part.data(), bytes.data(), length);
    account(part);
    used_ += length;
    bytes = bytes.subspan(length, bytes.size() - length);
  }
}

void FileAppender::flush() {
  write_(begin_, memory_, used_);
  begin_ += used_;
  used_ = 0;
}

}  // namespace cairn
