#include <algorithm>
#include <optional>

#include <cairn/base/error.hpp>
#include <cairn/storage/checkpoint_writer.hpp>
#include <cairn/storage/publication.hpp>

namespace cairn {
namespace {

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// What a place without a commit record is most likely to be, and what to do.
std::string why_none(Store& store) {
  if (!store.open_attempts().empty())
    return "a save began there and has not ended: it still runs, or it died half-way. Load the checkpoint before it";
  const std::vector<ObjectInfo> objects = store.list();
  if (objects.empty()) return "there is nothing at all, no such directory or an empty one. Check the path";
  for (const ObjectInfo& object : objects)
    if (ends_with(object.name, std::string("/") + kCommitRecordName))
      return "but there is one below it, at " + child_url(store.url(), object.name.substr(0, object.name.rfind('/'))) +
             ". Give the path of one checkpoint";
  const auto data =
      std::find_if(objects.begin(), objects.end(), [](const ObjectInfo& object) { return ends_with(object.name, ".distcp"); });
  if (data != objects.end() || !store.fenced_attempts().empty())
    return "there are data files of a save that failed or died half-way. Load the checkpoint before it";
  return "what is there (" + objects.front().name + (objects.size() > 1 ? ", …" : "") + ") is no checkpoint. Check the path";
}

}  // namespace

Metadata read_metadata(Store& store) {
  if (std::optional<Metadata> metadata = published_metadata(store)) return std::move(*metadata);
  throw Error(ErrorCode::kNotFound,
              "there is no checkpoint at " + store.url() + ": it has no " + kCommitRecordName + ", and " + why_none(store));
}

}  // namespace cairn
