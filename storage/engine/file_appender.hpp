// Appends to an object from front to back through one staging block, which is reused, and
// checksums the content.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <cairn/base/bytes.hpp>
#include <cairn/storage/engine/checksums.hpp>
#include <cairn/storage/engine/staging_ring.hpp>

namespace cairn {

// Not thread-safe.
class FileAppender {
 public:
  // Writes the first `length` bytes of `memory` to offset `begin` of the object. May move `memory`
  // away to write it later, and put another block in its place. May throw.
  using Write = std::function<void(std::uint64_t begin, StagingBlock& memory, std::size_t length)>;

  // Continues at offset `begin`, a multiple of `block_bytes`. The first `used` bytes of `memory`, a
  // block of `block_bytes`, are filled already; `parts` lists known checksums of them. Borrows
  // `memory`.
  FileAppender(std::size_t alignment_bytes, StagingBlock& memory, std::size_t block_bytes, Write write, std::uint64_t begin = 0,
               std::size_t used = 0, const std::vector<ChecksummedPart>& parts = {});

  // Appends content.
  void append(ByteSpan bytes);
  // Ends the content and returns its checksums.
  const BlockChecksums& end_content();
  // Appends bytes that block checksums do not cover.
  void append_trailer(ByteSpan bytes);
  // Writes the remaining bytes, padded to `alignment_bytes`. Returns the length without padding.
  std::uint64_t finish();

  std::uint64_t position() const { return begin_ + used_; }  // in the file

 private:
  template <class Account>
  void put(ByteSpan bytes, const Account& account);
  void flush();

  const std::size_t alignment_bytes_;
  StagingBlock& memory_;
  const std::size_t block_bytes_;
  const Write write_;
  std::uint64_t begin_;  // offset of the staging block in the file
  std::size_t used_;     // bytes used in the staging block
  BlockChecksums checksums_;
};

}  // namespace cairn
