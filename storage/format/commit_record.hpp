// The commit record `.metadata`: PyTorch's pickle of the metadata, then Cairn's own section, then a
// footer.
//
//   | pickle | section (Protobuf, messages/metadata.proto) | footer, 32 bytes |
//
// `pickle.load` stops at the end of the pickle. In Cairn's records, storage_meta.save_id of the
// pickle begins with "cairn-". A record with that mark but without a valid footer is damaged; a
// record without the mark is PyTorch's. The footer's CRC-32 covers every byte before it. For the
// bytes see storage/FORMAT.md, "The commit record".
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <cairn/base/bytes.hpp>
#include <cairn/formats/torch_metadata.hpp>
#include <cairn/planning/metadata.hpp>
#include <cairn/storage/format/metadata_codec.hpp>
#include <cairn/storage/store.hpp>

namespace cairn {

// A lower bound on a record's bytes per chunk, for checkpoints with many chunks.
inline constexpr std::uint64_t kCommitRecordBytesPerChunkMin = 96;

// Prefix of the save id that PyTorch sees in a checkpoint that Cairn wrote.
inline constexpr const char* kSaveIdMark = "cairn-";

// Throws kUnsupported if the record of a save with `items` chunks and bytes objects would certainly
// exceed kCommitRecordBytesMax.
void check_commit_record_fits(std::uint64_t items);

// Encodes the record of `metadata`. Throws kInvalidArgument if the metadata is inconsistent, lacks
// the length, checksum or trailer length of a file, or has names that are not UTF-8. Throws
// kUnsupported if the record would exceed kCommitRecordBytesMax.
Bytes encode_commit_record(const Metadata& metadata);

// The part of a record that saves of one plan share, if their items have the same lengths.
struct EncodedPlan {
  explicit EncodedPlan(const Metadata& metadata);  // throws as encode_commit_record does

  TorchPickle pickle;
  EncodedEntries entries;
};
// Returns the record of such a save. Of `metadata`, uses all but entries and paths.
Bytes encode_commit_record(const EncodedPlan& plan, const Metadata& metadata);

// Decodes a record that Cairn or PyTorch wrote; `commit` is set only for Cairn's. The result is
// consistent: boxes fit their tensors, file indices are valid, and in each tensor either all chunks
// have a location or none has. Each file of a record that Cairn wrote has a length, a checksum and
// a trailer length. `what` begins error texts ("the metadata of /run/step_1"). Throws kCorrupt for
// a damaged record. Throws kUnsupported for a newer format version, a class that DCP does not use,
// values nested too deeply, or a record that is too large. With `needed`, may decode only the
// entries that a load needs; Metadata::others then has the names of the others.
Metadata decode_commit_record(ByteSpan record, const std::string& what = "the commit record", const NeededNames* needed = nullptr);

// A load that knows the names that it needs reads only Cairn's section, a small part of a large
// record. Returns how many bytes at the end of a record have it, or 0 if `end` does not tell.
std::uint64_t commit_section_bytes(const ObjectEnd& end);
// Decodes the section in the end of a record as decode_commit_record does. Does not check the rest
// of the record. Returns nothing if `end` lacks the section, if its own checksum does not match, or
// if it cannot be decoded: then the whole record tells why.
std::optional<Metadata> decode_commit_section(const ObjectEnd& end, const std::string& what, const NeededNames& needed);

}  // namespace cairn
