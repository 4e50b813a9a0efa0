// The few fields of a commit record that clean-up, numbering and retention need. Reading only these
// saves reading the megabytes around them.
#pragma once

#include <optional>
#include <string>

#include <cairn/planning/metadata.hpp>
#include <cairn/storage/store.hpp>

namespace cairn {

struct CommitHead : CommitInfo {
  std::string save_id;
};

// Reads the head of commit record `name`. Returns nothing if there is no record, or if it is not
// Cairn's. Reads the last 64 KiB, which have the head unless the user's metadata are long. Does not
// check the record's CRC-32. If the store has a second copy of the record (Store::fallback), checks
// the CRC-32 of a record of up to 64 KiB, and reads the second copy if the first is damaged. Begins
// with `seen`, if it has an end of the record that was read before. Throws kCorrupt if the record
// is damaged or cut off, or is replaced during the read. Throws the store's errors.
std::optional<CommitHead> read_commit_head(Store& store, const ObjectName& name = kCommitRecordName,
                                           const PlaceContents* seen = nullptr);
// Returns the head of a whole record in memory, without a fence mark; nothing if it is not Cairn's.
// Throws kCorrupt.
std::optional<CommitHead> commit_head_in(ByteSpan record);

}  // namespace cairn
