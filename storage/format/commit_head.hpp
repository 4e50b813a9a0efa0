// What clean-up, numbering and whoever keeps checkpoints ask of a commit record, without reading the megabytes around it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include <cairn/storage/store.hpp>

namespace cairn {

struct CommitHead {
  std::string save_id;
  std::uint64_t sequence = 0;
  std::optional<std::int64_t> step;
  std::map<std::string, std::string> user_metadata;
};

// The head of commit record `name`; nothing if there is none or if it is not Cairn's. Reads the footer, then hops from field to
// field of Cairn's section. The record's CRC-32 is not checked, and a record that is replaced meanwhile may look damaged: kCorrupt.
// Other errors are the store's.
std::optional<CommitHead> read_commit_head(Store& store, const ObjectName& name = kCommitRecordName);

}  // namespace cairn
