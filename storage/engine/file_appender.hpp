// Appends to an object from front to back through one staging block, which is reused, and
// checksums the content.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <cairn/base/bytes.hpp>
#include <cairn/storage/engine/checksums.hpp>
#include <cairn/storage/engine/staging_ring.hpp>
#include <cairn/storage/store.hpp>

namespace cairn {

// Not thread-safe.
class FileAppender {
 public:
  // Continues at offset `begin`, a multiple of `block_bytes`. The first `used` bytes of `memory`, a
  // block of `block_bytes`, are filled already; `parts` lists known checksums of them. Calls
  // `before_write` before each write; it may throw. Borrows `writer` and `memory`.
  FileAppender(ObjectWriter& writer, const StagingBlock& memory, std::size_t block_bytes, std::function<void()> before_write,
               std::uint64_t begin = 0, std::size_t used = 0, const std::vector<ChecksummedPart>& parts = {});

  // Appends content and returns its CRC-32.
  std::uint32_t append(ByteSpan bytes);
  // Ends the content.
  const BlockChecksums& end_content();
  // Appends bytes that block checksums do not cover.
  void append_trailer(ByteSpan bytes);
  // Writes the remaining bytes and returns the length of the file.
  std::uint64_t finish();

  std::uint64_t position() const { return begin_ + used_; }  // in the file

 private:
  template <class Account>
  void put(ByteSpan bytes, const Account& account);
  void flush();

  ObjectWriter& writer_;
  const StagingBlock& memory_;
  const std::size_t block_bytes_;
  const std::function<void()> before_write_;
  std::uint64_t begin_;  // offset of the staging block in the file
  std::size_t used_;     // bytes used in the staging block
  BlockChecksums checksums_;
};

}  // namespace cairn
