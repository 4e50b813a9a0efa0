#include <cairn/storage/read_metadata.hpp>

#include <algorithm>
#include <optional>

#include <cairn/base/error.hpp>
#include <cairn/base/rank_text.hpp>
#include <cairn/storage/format/commit_record.hpp>
#include <cairn/storage/format/missing_parts.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/format/safetensors.hpp>
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
    return "torch_checkpointing wrote what is there: load it with TorchCheckpointingReader (storage/torch_checkpointing.hpp)";
  if (!open_attempts.empty())
    return "a save began there and has not ended: it still runs, or it died half-way. Load the checkpoint before it";
  const std::vector<ObjectName> places = store.children();
  if (std::any_of(places.begin(), places.end(), [](const ObjectName& place) { return part_of_name(place).has_value(); }))
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

}  // namespace

bool is_torch_checkpointing(Store& store) {
  if (store.exists(kItemsRecordName)) {
    std::string begin(static_cast<std::size_t>(std::min<std::uint64_t>(store.size_bytes(kItemsRecordName), 64)), '\0');
    if (!begin.empty()) store.read(kItemsRecordName, {{0, {begin.data(), begin.size()}}});
    if (begin[0] == '\x80' && begin.find("metadata") != std::string::npos) return true;  // the first key of a pickled dict
  }
  const std::vector<ObjectInfo> objects = store.list();
  const auto any = [&](const auto& is_it) { return std::any_of(objects.begin(), objects.end(), is_it); };
  return !any([](const ObjectInfo& object) { return ends_with(object.name, kSafetensorsEnd); }) &&
         any([](const ObjectInfo& object) { return item_of_file(object.name).value_or(std::pair("", 1)).second == 0; });
}

Metadata read_metadata(Store& store) {
  if (std::optional<Metadata> metadata = published_metadata(store)) return std::move(*metadata);
  // A network file system's client may cache the absence of a record for a minute. Opening the
  // directory refreshes the cache.
  const std::vector<std::string> open_attempts = store.open_attempts();
  if (std::optional<Metadata> metadata = published_metadata(store)) return std::move(*metadata);
  throw Error(ErrorCode::kNotFound,
              "there is no checkpoint at " + store.url() + ": it has no " + kCommitRecordName + ", and " + why_none(store, open_attempts));
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
