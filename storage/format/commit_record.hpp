// The commit record, `.metadata`: PyTorch's pickle of the metadata, then Cairn's own section, then a footer.
//
//   | pickle | section (Protobuf, messages/metadata.proto) | footer, 32 bytes |
//
// `pickle.load` stops where the pickle ends. The pickle's storage_meta.save_id begins with "cairn-": a record with that mark and
// without a sound footer is damaged; one without the mark is PyTorch's. The footer's CRC-32 covers every byte before it. Bytes:
// storage/FORMAT.md, "The commit record".
//
// Pure functions, thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include <cairn/base/bytes.hpp>
#include <cairn/planning/metadata.hpp>

namespace cairn {

// Larger records are neither written nor read. Ask for the object's size before reading it.
inline constexpr std::uint64_t kCommitRecordBytesMax = std::uint64_t{2} << 30;

// A lower bound of a record's bytes per chunk, in a checkpoint with many chunks.
inline constexpr std::uint64_t kCommitRecordBytesPerChunkMin = 108;

// Of Cairn's section and of all that it implies (names, trailers, archives). Readers refuse later ones.
inline constexpr std::uint32_t kFormatVersion = 1;

// What PyTorch sees as the save id of a checkpoint that Cairn wrote begins with this.
inline constexpr const char* kSaveIdMark = "cairn-";

// Throws kUnsupported if the record of a save with `items` chunks and bytes objects is certain to exceed kCommitRecordBytesMax.
void check_commit_record_fits(std::uint64_t items);

// The record of `metadata`. Throws kInvalidArgument if that contradicts itself or has names that are not UTF-8, kUnsupported if the
// record would be larger than kCommitRecordBytesMax.
Bytes encode_commit_record(const Metadata& metadata);

// The metadata in a record, whoever wrote it: `commit` is set exactly if Cairn did. What it returns is consistent in itself: boxes
// fit their tensors, files are known, every chunk has a location or the whole tensor has none. `what` begins error texts ("the
// metadata of /run/step_1"). Throws kCorrupt; kUnsupported for a newer format version, a class that DCP does not use, values nested
// too deep, or too large a record.
Metadata decode_commit_record(ByteSpan record, const std::string& what = "the commit record");

}  // namespace cairn
