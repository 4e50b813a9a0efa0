// Encodes and decodes Cairn's section of the commit record. Preserves everything in
// cairn::Metadata. The functions are thread-safe.
//
// Decoding checks everything except whether chunks tile their tensors; see `check_coverage`.
// Decoding throws kCorrupt, naming the fault, and skips fields of later versions, which it lists.
// 
// Encoding throws kInvalidArgument for inconsistent metadata, so its result can always be decoded.
// Encoding throws kUnsupported above 2 GiB, the limit of Protobuf.
#pragma once

#include <cstdint>
#include <vector>

#include <cairn/base/bytes.hpp>
#include <cairn/planning/metadata.hpp>

namespace cairn {

// Version of Cairn's section and of everything that it implies (names, trailers, archives). Readers
// accept earlier versions, and refuse later ones.
inline constexpr std::uint32_t kFormatVersion = 2;

// Maximum length of a record, written or read. Check the object's size before reading it.
inline constexpr std::uint64_t kCommitRecordBytesMax = std::uint64_t{2} << 30;

Bytes encode_metadata(const Metadata& metadata);

// The part of a section that saves of one plan share, if their items have the same lengths:
// entries, locations and paths.
struct EncodedEntries {
  Bytes bytes;
  std::vector<bool> is_explicit;  // by file, as in the section
};
EncodedEntries encode_entries(const Metadata& metadata);
// Adds what differs: of `metadata`, uses all but entries and paths.
Bytes encode_section(const EncodedEntries& entries, const Metadata& metadata);

// Returns the end of the encoded metadata, which in a record only the checksum follows: a section
// with the save id and the commit alone.
Bytes encode_head(const Metadata& metadata);
// Returns the last field of a section in a record: a checksum of the section before it and of the
// footer before its CRC-32.
Bytes encode_checksum(ByteSpan section, ByteSpan footer_fields);
// With `needed`, decodes no other entries than these, unless a needed name is missing, or a path
// does not follow from its name. Of the others it fills in the names, and checks less.
Metadata decode_metadata(ByteSpan bytes, std::uint32_t version = kFormatVersion, const NeededNames* needed = nullptr);

}  // namespace cairn
