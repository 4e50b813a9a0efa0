// The footer of a commit record that Cairn wrote: 32 bytes, little-endian.
//
//   | section u64 | head u64 | version u32 | magic, 8 bytes | CRC-32 u32 |
//
// Section and head are offsets in the record: of Cairn's section, and of the part at its end that
// has the save id, the commit and the section's checksum. Version 1 has the length of the section
// instead, and no such part. The CRC-32 covers all bytes of the record before the CRC-32. Magic and
// CRC-32 keep their places in every version.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include <cairn/base/bytes.hpp>
#include <cairn/base/digest.hpp>
#include <cairn/formats/zip_format.hpp>

namespace cairn {

inline constexpr std::string_view kCommitMagic = "CairnRec";
inline constexpr std::size_t kCommitFooterBytes = 32;
inline constexpr std::size_t kCommitCrcAt = 28;  // within the footer
// Size of the end of a record that is read at once: all of most records. In an object store each
// read is a request.
inline constexpr std::size_t kRecordEndBytes = std::size_t{64} * 1024;

struct CommitFooter {
  std::uint64_t section_offset = 0;
  std::uint64_t head_offset = 0;  // in version 1 that of the section
  std::uint32_t version = 0;
  std::uint32_t crc32 = 0;
};

// Parses the footer in the last bytes of a record. Returns nothing if there is no footer. Does not
// check the values in the footer.
inline std::optional<CommitFooter> parse_commit_footer(ByteSpan record_end) {
  if (record_end.size() < kCommitFooterBytes) return std::nullopt;
  const ByteSpan bytes = record_end.subspan(record_end.size() - kCommitFooterBytes, kCommitFooterBytes);
  if (bytes.view().substr(20, kCommitMagic.size()) != kCommitMagic) return std::nullopt;
  CommitFooter footer;
  footer.section_offset = zip::get_u64(bytes.data());
  footer.version = zip::get_u32(bytes.data() + 16);
  footer.head_offset = footer.version == 1 ? footer.section_offset : zip::get_u64(bytes.data() + 8);
  footer.crc32 = zip::get_u32(bytes.data() + kCommitCrcAt);
  return footer;
}

// A fence mark: 32 bytes, little-endian. A store that publishes by conditional writes appends one
// to the object when it fences an attempt. The mark changes the object, so the attempt's write
// fails, but not the record in it.
//
//   | nonce, 16 bytes | 0 u32 | magic, 8 bytes | CRC-32 u32 |
//
// The CRC-32 covers the bytes of the mark before the CRC-32. The store hides the mark; a copy of
// the object that was made without Cairn still ends in the mark.
inline constexpr std::string_view kFenceMagic = "CairnFnc";
inline constexpr std::size_t kFenceMarkBytes = kCommitFooterBytes;  // equal, so that one read finds either

// Returns a fence mark. `nonce` must have 16 bytes and must never be used twice.
inline Bytes make_fence_mark(ByteSpan nonce) {
  Bytes mark(nonce.view());
  zip::put_u32(mark, 0);
  mark += kFenceMagic;
  zip::put_u32(mark, crc32(0, mark));
  return mark;
}

inline bool ends_in_fence_mark(ByteSpan bytes) {
  if (bytes.size() < kFenceMarkBytes) return false;
  const ByteSpan mark = bytes.subspan(bytes.size() - kFenceMarkBytes, kFenceMarkBytes);
  return mark.view().substr(20, kFenceMagic.size()) == kFenceMagic &&
         zip::get_u32(mark.data() + kCommitCrcAt) == crc32(0, mark.subspan(0, kCommitCrcAt));
}

}  // namespace cairn
