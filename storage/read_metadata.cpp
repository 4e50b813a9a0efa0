#include <cairn/storage/read_metadata.hpp>

#include <algorithm>
#include <optional>

#include <cairn/base/error.hpp>
#include <cairn/base/rank_text.hpp>
#include <cairn/formats/safetensors.hpp>
#include <cairn/planning/require_coverage.hpp>
#include <cairn/storage/format/commit_record.hpp>
#include <cairn/storage/format/missing_parts.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/presence.hpp>
#include <cairn/storage/publication.hpp>

namespace cairn {
namespace {

// In larger runs, the advice in the error text does not look at every place.
constexpr std::size_t kPlacesLookedAtMax = 1000;

bool has_checkpoint(Store& store, const ObjectName& place) {
  try {
    return store.exists(place + "/" + kCommitRecordName);
  } catch (const Error&) {
    return false;  // no permission to look into this place
  }
}

// Returns ", but there is none of rank 2" if one world has saved parts, and some are missing.
std::string why_incomplete(Store& store, std::vector<ObjectName> places) {
  if (places.size() > kPlacesLookedAtMax) return "";
  places.erase(std::remove_if(places.begin(), places.end(), [&](const ObjectName& place) { return !has_checkpoint(store, place); }),
               places.end());
  const auto missing = missing_parts(places);
  return missing.size() == 1 ? ", but there is none of " + name_ranks(missing.begin()->second) : "";
}

// Returns what a place without a commit record is most likely to be, and what to do. Looks only one
// level deep, because a mistaken path may have a whole disk below it.
std::string why_none(Store& store, const std::vector<std::string>& open_attempts) {
  if (is_torch_checkpointing(store))
    return "torch_checkpointing wrote what is there: load it with TorchCheckpointingReader (state/torch_checkpointing.hpp)";
  if (!open_attempts.empty())
    return "a save began there and has not ended: it still runs, or it died half-way. Load the checkpoint before it";
  const std::vector<ObjectName> places = store.children();
  if (has_parts(places))
    return "each rank has saved its part for itself there" + why_incomplete(store, places) +
           ": load it with use_collectives off, or " + kMergeAdvice;
  for (std::size_t i = 0; i < std::min(places.size(), kPlacesLookedAtMax); ++i)
    if (has_checkpoint(store, places[i]))
      return "there is one below it, at " + child_url(store.url(), places[i]) + ". Give the path of one checkpoint";
  const std::vector<ObjectInfo> data = store.list(kDataFilePrefix);
  const bool any_data =
      std::any_of(data.begin(), data.end(), [](const ObjectInfo& object) { return ends_with(object.name, ".distcp"); });
  if (any_data || !store.fenced_attempts().empty())
    return "there are data files of a save that failed or died half-way. Load the checkpoint before it";
  std::vector<ObjectName> found = places;
  if (found.empty())
    for (const ObjectInfo& object : store.list()) found.push_back(object.name);
  if (found.empty()) return "there is nothing at all, no such directory or an empty one. Check the path";
  return "what is there (" + found.front() + (found.size() > 1 ? ", …" : "") + ") is no checkpoint. Check the path";
}

// Joins the records of all ranks. Throws kNotFound, with the name, if a rank's record or a file is
// missing, and kMismatch if the parts do not cover the tensors.
Metadata joined_metadata(Store& store, const std::map<int, ObjectName>& records) {
  const std::string place = store.url() + ", where PyTorch wrote one record for each rank (use_collectives=False)";
  const auto lacks = [&](const std::string& what) {
    return Error(ErrorCode::kNotFound,
                 "cannot join the parts at " + place + ": " + what + ". Put what is missing there, or load another checkpoint");
  };
  std::vector<int> missing;
  int next = 0;
  for (const auto& named : records) {
    for (; next < named.first && missing.size() < kPlacesLookedAtMax; ++next) missing.push_back(next);
    next = named.first + 1;
  }
  if (!missing.empty()) throw lacks("there is no record of " + name_ranks(missing));
  JoinedRecords joined;
  for (const auto& [rank, name] : records) {
    auto record = published_metadata(store, name);
    if (!record) throw lacks(name + " was removed meanwhile");
    joined.add(std::move(*record));
  }
  Metadata metadata = joined.take();
  for (const FileInfo& file : metadata.files)
    if (!store.exists(file.name)) throw lacks("there is no " + file.name);
  require_coverage(metadata, "the records of " + std::to_string(records.size()) + " ranks do not make one checkpoint at " + place);
  return metadata;
}

}  // namespace

bool is_torch_checkpointing(Store& store) {
  if (store.exists(kItemsRecordName)) {
    std::string begin(static_cast<std::size_t>(std::min<std::uint64_t>(store.size_bytes(kItemsRecordName), 64)), '\0');
    if (!begin.empty()) store.read(kItemsRecordName, {{0, {begin.data(), begin.size()}}});
    if (begin[0] == '\x80' && begin.find("metadata") != std::string::npos) return true;  // the first key of a pickled dict
  }
  if (!store.children().empty()) return false;  // there may be a whole disk below it
  const std::vector<ObjectInfo> objects = store.list();
  const auto any = [&](const auto& is_it) { return std::any_of(objects.begin(), objects.end(), is_it); };
  return !any([](const ObjectInfo& object) { return ends_with(object.name, kSafetensorsEnd); }) &&
         any([](const ObjectInfo& object) { return item_of_file(object.name).value_or(std::pair("", 1)).second == 0; });
}

std::map<int, ObjectName> rank_records(Store& store) {
  std::map<int, ObjectName> records;
  for (ObjectInfo& object : store.list(kDataFilePrefix))
    if (const auto rank = rank_of_record(object.name)) records.emplace(*rank, std::move(object.name));
  return records;
}

// PyTorch writes one record, or one for each rank (use_collectives=False).
bool has_records(Store& store) { return store.exists(kCommitRecordName) || !rank_records(store).empty(); }

Metadata read_metadata(Store& store, const NeededNames* needed) {
  if (std::optional<Metadata> metadata = published_metadata(store, kCommitRecordName, needed)) return std::move(*metadata);
  // A network file system's client may cache the absence of a record for a minute. Opening the
  // directory refreshes the cache.
  const std::vector<std::string> open_attempts = store.open_attempts();
  if (std::optional<Metadata> metadata = published_metadata(store)) return std::move(*metadata);
  if (const auto records = rank_records(store); !records.empty()) return joined_metadata(store, records);
  throw Error(ErrorCode::kNotFound, "there is no checkpoint at " + store.url() + ": it has no " + kCommitRecordName + ", and " +
                                        why_none(store, open_attempts));
}

Metadata read_metadata(Store& store, const PlaceContents& found) {
  if (const auto& [bytes, content] = found.record; bytes > 0 && content.size() == bytes) {
    try {
      return decode_commit_record(content, child_url(store.url(), kCommitRecordName));
    } catch (const Error&) {  // read again below
    }
  }
  return read_metadata(store);
}

}  // namespace cairn
