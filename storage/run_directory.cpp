#include <cairn/storage/run_directory.hpp>

#include <algorithm>
#include <exception>
#include <tuple>
#include <utility>

#include <cairn/base/error.hpp>
#include <cairn/base/save_id.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/format/safetensors.hpp>
#include <cairn/storage/publication.hpp>
#include <cairn/storage/read_metadata.hpp>

namespace cairn {
namespace {

constexpr const char* kPinName = ".pinned";

std::string record_of(const ObjectName& place) { return place + "/" + kCommitRecordName; }

bool may_have_safetensors(Store& place) { return !place.list("model-").empty() || !place.list("shard-").empty(); }

// Returns the safetensors files of a checkpoint and their index, which goes first. Their names do
// not tell who wrote them, so only files of the record count.
std::vector<ObjectName> safetensors_files(Store& place) {
  if (!may_have_safetensors(place)) return {};
  std::optional<Metadata> metadata;
  try {
    metadata = published_metadata(place);
  } catch (const Error& error) {
    if (!tells_of_the_record(error)) throw;
  }
  std::vector<ObjectName> names;
  if (metadata && metadata->commit)
    for (const FileInfo& file : metadata->files)
      if (ends_with(file.name, kSafetensorsEnd)) names.push_back(file.name);
  // Parts of ranks have no index: one beside them belongs to somebody else.
  const bool has_index =
      std::any_of(names.begin(), names.end(), [](const ObjectName& name) { return name.rfind("model-", 0) == 0; });
  if (has_index) names.insert(names.begin(), kSafetensorsIndexName);
  return names;
}

// Steps 4 and 5 of a removal: nothing refers to these files any more.
void remove_data(Store& place, const std::vector<ObjectInfo>& files, const std::function<bool()>& may_go_on) {
  for (const ObjectInfo& file : files) {
    if (!save_id_of_file(file.name)) continue;
    // Asked before each file, because the caller may stop a removal at any time.
    if (!may_go_on()) return;
    place.remove(file.name);
  }
  // Without their mark, readers would take safetensors files of a dead save for a model.
  const std::vector<std::string> fenced = place.fenced_attempts();
  if (!fenced.empty() && !may_have_safetensors(place))
    for (const std::string& id : fenced)
      if (is_save_id(id)) place.clear_attempt(id);
  // Last, and only if it is empty: files of the user stay, and with them the directory.
  place.remove_root();
}

}  // namespace

RunDirectory::RunDirectory(const std::string& url)
    : run_(open_store(url)),
      open_place_([root = run_->url()](const ObjectName& name) { return open_store(child_url(root, name)); }) {}

RunDirectory::RunDirectory(std::shared_ptr<Store> run, OpenPlace open_place)
    : run_(std::move(run)), open_place_(std::move(open_place)) {}

RunDirectory::Listing RunDirectory::list() const {
  Listing listing;
  for (const ObjectName& name : run_->children()) {
    try {
      if (auto head = read_commit_head(*run_, record_of(name)))
        listing.checkpoints.push_back({name, std::move(*head)});
      else if (has_record(name))
        listing.others.push_back(name);
    } catch (const Error& error) {
      if (!tells_of_the_record(error)) throw;
      listing.others.push_back(name);
    }
  }
  // Saves that publish at the same moment may have the same sequence. The save id then gives an
  // order that is the same for every process.
  std::sort(listing.checkpoints.begin(), listing.checkpoints.end(), [](const RunCheckpoint& a, const RunCheckpoint& b) {
    return std::tie(a.head.sequence, a.head.save_id) > std::tie(b.head.sequence, b.head.save_id);
  });
  return listing;
}

bool RunDirectory::has_record(const ObjectName& name) const { return run_->is_taken(record_of(name)); }

std::string RunDirectory::why_occupied(const ObjectName& name) const {
  const bool is_taken =
      // Throws if the run itself cannot be examined; otherwise every name would seem occupied.
      run_->is_taken(name);
  try {
    if (has_record(name)) return child_url(url(), name) + " holds a checkpoint";
  } catch (const Error& error) {
    if (!tells_of_the_record(error)) throw;
    return error.what();
  }
  if (!is_taken) return "";
  if (is_link(name)) return child_url(url(), name) + " is a symbolic link";
  const std::vector<ObjectName> places = run_->children();
  if (std::find(places.begin(), places.end(), name) != places.end()) {
    const std::vector<ObjectName> below = open(name)->children();
    const bool has_parts = std::any_of(below.begin(), below.end(), [](const ObjectName& child) { return part_of_name(child); });
    return has_parts ? child_url(url(), name) + " holds parts that ranks saved with use_collectives off" : "";
  }
  if (!run_->is_taken(name)) return "";  // a clean-up has removed what a dead save left
  return child_url(url(), name) + " is no place for a checkpoint";
}

std::string RunDirectory::why_unreadable(const ObjectName& name) const {
  try {
    const std::shared_ptr<Store> place = open(name);
    if (published_metadata(*place) || !place->is_taken(kCommitRecordName)) return "";
    return child_url(place->url(), kCommitRecordName) + " is no record: it is a directory, a pipe, or a link that leads nowhere";
  } catch (const Error& error) {
    if (!tells_of_the_record(error)) throw;
    return error.what();
  }
}

std::string RunDirectory::fault_of(const ObjectName& name) const {
  try {
    const std::shared_ptr<Store> place = open(name);
    const Metadata metadata = read_metadata(*place);
    for (const FileInfo& file : metadata.files) {
      std::uint64_t length = place->size_bytes(file.name);
      if (const auto other = file.length && length != *file.length ? place->fallback() : nullptr; other && other->exists(file.name))
        length = other->size_bytes(file.name);
      if (file.length && length != *file.length)
        return child_url(place->url(), file.name) + " has " + std::to_string(length) + " bytes, " + std::to_string(*file.length) +
               " were written";
    }
    return "";
  } catch (const Error& error) {
    if (!tells_of_the_record(error)) throw;
    return error.what();
  }
}

bool RunDirectory::is_link(const ObjectName& name) const { return open(name)->leads_elsewhere(); }

void RunDirectory::pin(const ObjectName& name) const {
  const std::shared_ptr<Store> place = open_to_change(name);
  if (!place->exists(kCommitRecordName))
    throw Error(ErrorCode::kNotFound, "cannot pin " + place->url() + ": there is no checkpoint");
  if (place->exists(kPinName)) return;
  try {
    // Synced, because a pin that a power loss takes away would let the checkpoint be removed.
    place->create(kPinName)->sync(0);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kAlreadyExists) throw;  // another process has just created it
  }
}

void RunDirectory::unpin(const ObjectName& name) const { open_to_change(name)->remove(kPinName); }

bool RunDirectory::is_pinned(const ObjectName& name) const { return run_->exists(name + "/" + kPinName); }

std::shared_ptr<Store> RunDirectory::open_to_change(const ObjectName& name) const {
  std::shared_ptr<Store> place = open(name);
  if (place->leads_elsewhere())
    throw Error(ErrorCode::kPermission,
                "cannot change " + place->url() + ": it is a symbolic link, and its target may belong to another run");
  return place;
}

std::optional<std::string> RunDirectory::remove(const RunCheckpoint& checkpoint, const MayChange& may_change) const {
  const std::shared_ptr<Store> place = open_to_change(checkpoint.name);
  // Removal is safe only in this order of steps: see the header.
  const std::vector<ObjectInfo> files = place->list(kDataFilePrefix);
  std::vector<std::string> open = place->open_attempts();
  // The process that saved this checkpoint may have died after publishing and before it removed its
  // own attempt.
  const auto own = std::remove(open.begin(), open.end(), checkpoint.head.save_id);
  const bool has_own = own != open.end();
  if (own != open.begin()) return "a save to it has begun, and has not ended";
  if (is_pinned(checkpoint.name)) return "it is pinned";
  const auto head = read_commit_head(*place);
  if (!head || head->save_id != checkpoint.head.save_id) return "it was replaced or removed meanwhile";
  const auto may_go_on = [&] { return may_change(checkpoint.name); };
  if (!may_go_on()) return "its removal was stopped";
  const std::vector<ObjectName> safetensors = safetensors_files(*place);
  // The point of no return. Files may go only after the record is gone for good.
  place->retract();
  if (has_own) place->fence(checkpoint.head.save_id);
  for (const ObjectName& name : safetensors)
    if (may_go_on()) place->remove(name);
  remove_data(*place, files, may_go_on);
  return std::nullopt;
}

std::vector<std::pair<ObjectName, std::string>> RunDirectory::remove_remains(const std::set<ObjectName>& busy, bool end_attempts,
                                                                             const MayChange& may_change) const {
  std::vector<std::pair<ObjectName, std::string>> faults;
  for (const ObjectName& name : run_->children()) {
    if (!is_checkpoint_name(name) || busy.count(name) > 0) continue;
    try {
      if (has_record(name)) continue;
      if (!may_change(name)) break;
      remove_remains_of(name, end_attempts, may_change);
    } catch (const std::exception& error) {  // a user's store may throw anything
      faults.emplace_back(name, error.what());
    }
  }
  return faults;
}

void RunDirectory::remove_remains_of(const ObjectName& name, bool end_attempts, const MayChange& may_change) const {
  const std::shared_ptr<Store> place = open(name);
  if (place->leads_elsewhere()) return;
  const std::vector<ObjectInfo> files = place->list(kDataFilePrefix);
  for (const std::string& id : place->open_attempts()) {
    // A save is running here, or another program's attempt.
    if (!end_attempts || !is_save_id(id)) return;
    place->fence(id);
  }
  if (place->is_taken(kCommitRecordName)) return;  // one of these saves published before it was fenced
  remove_data(*place, files, [&] { return may_change(name); });
}

}  // namespace cairn
