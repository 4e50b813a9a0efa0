#include <cairn/storage/runs/run_directory.hpp>

#include <algorithm>
#include <sstream>
#include <tuple>
#include <utility>

#include <cairn/base/error.hpp>
#include <cairn/base/save_id.hpp>
#include <cairn/formats/safetensors.hpp>
#include <cairn/storage/copy_checkpoint.hpp>
#include <cairn/storage/engine/data_file.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/format/trailer.hpp>
#include <cairn/storage/presence.hpp>
#include <cairn/storage/publication.hpp>
#include <cairn/storage/read_metadata.hpp>

namespace cairn {
namespace {

constexpr const char* kPinName = ".pinned";
constexpr std::size_t kMarkBytesMax = 64 << 20;

// Returns whether Cairn gives such a name to a safetensors file.
bool is_safetensors_file(const ObjectName& name) {
  return (name.rfind("model-", 0) == 0 || name.rfind("shard-", 0) == 0) && ends_with(name, kSafetensorsEnd) &&
         name.find('/') == std::string::npos;
}

// The dead data at a place, as marks and fenced attempts name them.
struct Dead {
  std::set<std::string> ids;      // of saves
  std::vector<ObjectName> names;  // without a save id, in the order in which they go
  std::vector<ObjectName> marks;  // that say so
  std::vector<std::string> fenced;

  void add_fenced(std::vector<std::string> attempts) {
    fenced = std::move(attempts);
    ids.insert(fenced.begin(), fenced.end());
  }
};

// Returns whether a mark may name the file. Nothing else is ever written there, so another name is
// damage.
bool is_data(const ObjectName& name) {
  return save_id_of_file(name) || is_foreign_data_file(name) || name == kSafetensorsIndexName ||
         (ends_with(name, kSafetensorsEnd) && name.find('/') == std::string::npos);
}

// Adds the safetensors files of a record and their index, which is removed first. The names of
// these files do not show who wrote them, so only files of the record count.
void add_safetensors(const Metadata& metadata, Dead& dead) {
  for (const FileInfo& file : metadata.files)
    if (ends_with(file.name, kSafetensorsEnd)) dead.names.push_back(file.name);
  // Parts of ranks have no index: one beside them belongs to somebody else.
  const bool has_index =
      std::any_of(dead.names.begin(), dead.names.end(), [](const ObjectName& name) { return name.rfind("model-", 0) == 0; });
  if (has_index) dead.names.insert(dead.names.begin(), kSafetensorsIndexName);
}

std::string read_text(Store& store, const ObjectName& name, std::size_t bytes_max) {
  const auto end = store.read_end(name, bytes_max);
  return end && end->object_bytes == end->content.size() ? end->content : "";
}

void add_marks(Store& place, const std::vector<ObjectInfo>& objects, Dead& dead) {
  for (const ObjectInfo& object : objects) {
    const auto id = save_id_of_mark(object.name);
    if (!id) continue;
    dead.ids.insert(*id);
    dead.marks.push_back(object.name);
    if (object.size_bytes == 0) continue;
    std::istringstream names(read_text(place, object.name, kMarkBytesMax));
    for (ObjectName name; std::getline(names, name);)
      if (is_data(name)) dead.names.push_back(name);
  }
}

// Steps 5 and 6 of a removal: nothing refers to these files any more.
void remove_dead(Store& place, const std::vector<ObjectInfo>& objects, const Dead& dead, const std::function<bool()>& may_go_on) {
  std::vector<ObjectName> names;
  std::set<ObjectName> listed;
  for (const ObjectInfo& object : objects) {
    listed.insert(object.name);
    if (const auto id = save_id_of_file(object.name); id && dead.ids.count(*id) > 0) names.push_back(object.name);
  }
  names.insert(names.begin(), dead.names.begin(), dead.names.end());
  if (!dead.marks.empty()) names.push_back(kFindingName);
  for (const ObjectName& name : names) {
    if (listed.count(name) == 0) continue;
    // Asked before each file, because the caller may stop a removal at any time.
    if (!may_go_on()) return;
    place.remove(name);
  }
  // A store may have said too early that a file is gone. What says that it is dead stays then.
  const std::vector<ObjectInfo> left = names.empty() && dead.fenced.empty() ? std::vector<ObjectInfo>() : place.list();
  for (const ObjectInfo& object : left)
    if (const auto id = save_id_of_file(object.name); id && dead.ids.count(*id) > 0) return;
  // Without their mark, readers would take safetensors files of a dead save for a model.
  if (std::none_of(left.begin(), left.end(), [](const ObjectInfo& object) { return is_safetensors_file(object.name); }))
    for (const std::string& id : dead.fenced)
      if (is_save_id(id)) place.clear_attempt(id);
  for (const ObjectName& mark : dead.marks) place.remove(mark);
  // Last, and only if it is empty: files of the user stay, and with them the directory.
  place.remove_root();
}

// Returns whether a data file is complete: its writer has ended.
bool has_trailer(Store& place, const ObjectName& file) {
  const auto end = place.read_end(file, kTrailerFooterBytes);
  try {
    return end && trailer_length(end->content, end->object_bytes, file) > 0;
  } catch (const Error& error) {
    return error.code() == ErrorCode::kUnsupported;  // of a newer version
  }
}

// Returns what Cairn may have written to a place. Looks into other directories there only if the
// place is Cairn's: they may be huge, and need not be readable.
PlaceContents contents_of(Store& place, bool is_ours) {
  try {
    if (is_ours) return place.contents();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kPermission) throw;
  }
  PlaceContents found;
  for (const std::string& prefix : {std::string(kDataFilePrefix), std::string(kFindingName), removal_mark_name("")})
    for (ObjectInfo& object : place.list(prefix)) found.objects.push_back(std::move(object));
  found.open_attempts = place.open_attempts();
  found.fenced_attempts = place.fenced_attempts();
  return found;
}

void add_attempts(const PlaceContents& found, Dead& dead) {
  for (const auto* ids : {&found.open_attempts, &found.fenced_attempts}) dead.ids.insert(ids->begin(), ids->end());
}

// Returns the complete data files that are not among the dead ones. `is_ours`: the place has a name
// that Cairn gives.
std::set<ObjectName> complete_files(Store& place, const std::vector<ObjectInfo>& objects, bool is_ours, const Dead& dead) {
  std::set<ObjectName> found;
  const std::set<ObjectName> named(dead.names.begin(), dead.names.end());
  for (const auto& [name, bytes] : objects) {
    if (named.count(name) > 0) continue;
    const auto id = save_id_of_file(name);
    const bool counts = id                           ? dead.ids.count(*id) == 0 && has_trailer(place, name)
                        : is_foreign_data_file(name) ? is_ours && bytes > 0
                                                     : is_ours && dead.ids.empty() && is_safetensors_file(name);
    if (counts) found.insert(name);
  }
  return found;
}

}  // namespace

RunDirectory::RunDirectory(const std::string& url)
    : run_(open_store(url)),
      open_place_([root = run_->url()](const ObjectName& name) { return open_store(child_url(root, name)); }) {}

RunDirectory::RunDirectory(std::shared_ptr<Store> run, OpenPlace open_place)
    : run_(std::move(run)), open_place_(std::move(open_place)) {}

RunDirectory::Listing RunDirectory::list() const {
  Listing listing;
  RunView found = run_->look();
  for (const ObjectName& name : found.places) {
    try {
      if (auto head = read_commit_head(*run_, record_below(name), found.at(name)))
        listing.checkpoints.push_back({name, std::move(*head)});
      else
        (has_record(name) ? listing.others : listing.without_record).push_back(name);
    } catch (const Error& error) {
      if (!tells_of_the_record(error) && error.code() != ErrorCode::kPermission) throw;
      if (!tells_of_the_record(error) && is_checkpoint_name(name)) listing.refusal = std::current_exception();
      listing.others.push_back(name);
    }
  }
  listing.lost_latest = lost_latest(listing, std::move(found.latest));
  const PlaceContents* const own = found.at("");
  listing.is_checkpoint = has_parts(found.places) ||
                          (own != nullptr ? has_name(own->objects, kCommitRecordName) : run_->exists(kCommitRecordName));
  {
    const MutexLock lock(seen_->mutex);
    seen_->places = std::move(found.seen);
  }
  // Saves that publish at the same moment may have the same sequence. The save id then gives an
  // order that is the same for every process.
  std::sort(listing.checkpoints.begin(), listing.checkpoints.end(), [](const RunCheckpoint& a, const RunCheckpoint& b) {
    return std::tie(a.head.sequence, a.head.save_id) > std::tie(b.head.sequence, b.head.save_id);
  });
  return listing;
}

ObjectName RunDirectory::lost_latest(const Listing& listing, std::optional<LatestPlace> latest) const {
  ObjectName lost;
  // Looks twice, because another process may remove that checkpoint just now.
  for (; latest; latest = run_->look().latest) {
    const auto is_it = [&](const RunCheckpoint& checkpoint) { return checkpoint.name == latest->name; };
    if (std::any_of(listing.checkpoints.begin(), listing.checkpoints.end(), is_it) || has_record(latest->name)) break;
    if (latest->name == lost) return lost;
    lost = latest->name;
  }
  return "";
}

bool RunDirectory::has_record(const ObjectName& name) const {
  return run_->is_taken(record_below(name)) || !rank_records(*open(name)).empty();
}

bool RunDirectory::is_gone(const RunCheckpoint& checkpoint) const {
  try {
    const auto head = read_commit_head(*run_, record_below(checkpoint.name));
    return (head ? head->save_id : "") != checkpoint.head.save_id || !has_record(checkpoint.name);
  } catch (const Error& error) {
    if (!tells_of_the_record(error)) throw;
    return presence_by(error) == Presence::kAbsent;
  }
}

std::vector<ObjectName> RunDirectory::unrecorded(const std::vector<ObjectName>& without_record) const {
  std::vector<ObjectName> names;
  for (const ObjectName& name : without_record) {
    try {
      if (has_unrecorded(name)) names.push_back(name);
    } catch (const Error& error) {
      // A directory beside the checkpoints may be anybody's.
      if (error.code() != ErrorCode::kPermission || is_checkpoint_name(name)) throw;
    }
  }
  return names;
}

// A save that is published during the first look has a record in the second. A removal has its mark
// in the first look, or has removed the files before the second.
bool RunDirectory::has_unrecorded(const ObjectName& name) const {
  const std::set<ObjectName> first = unexplained(name);
  if (!first.empty())
    for (const ObjectName& file : unexplained(name))
      if (first.count(file) > 0) return true;
  if (!is_checkpoint_name(name)) return false;
  const std::vector<ObjectName> below = open(name)->children();
  return std::any_of(below.begin(), below.end(),
                     [&](const ObjectName& child) { return part_of_name(child) && has_unrecorded(name + "/" + child); });
}

// Returns the complete data files of a place without a record that nothing explains.
std::set<ObjectName> RunDirectory::unexplained(const ObjectName& name) const {
  if (has_record(name)) return {};
  const std::shared_ptr<Store> place = open(name);
  const bool is_ours = is_checkpoint_name(name);
  Dead dead;
  const PlaceContents seen = contents_of(*place, is_ours);
  add_attempts(seen, dead);
  add_marks(*place, seen.objects, dead);
  std::set<ObjectName> found = complete_files(*place, seen.objects, is_ours, dead);
  // In tiers, the far one has the attempts of checkpoints that were lost with the near one.
  if (const auto other = found.empty() ? nullptr : place->fallback()) {
    add_attempts(other->contents(), dead);
    found = complete_files(*place, seen.objects, is_ours, dead);
  }
  return found;
}

std::string RunDirectory::why_occupied(const ObjectName& name) const {
  // Throws if the run itself cannot be examined; otherwise every name would seem occupied. In a
  // bucket no object has the name of a place.
  if (!run_->is_taken(name) && !has_objects(*open(name))) return "";
  try {
    if (has_record(name)) return child_url(url(), name) + " holds a checkpoint";
  } catch (const Error& error) {
    // A place that may not be read is occupied as well.
    if (!tells_of_the_record(error) && error.code() != ErrorCode::kPermission) throw;
    return error.what();
  }
  if (is_link(name)) return child_url(url(), name) + " is a symbolic link";
  const std::vector<ObjectName> places = run_->children();
  if (has_name(places, name)) {
    if (has_parts(open(name)->children())) return child_url(url(), name) + " holds parts that ranks saved with use_collectives off";
    return has_unrecorded(name) ? child_url(url(), name) + " holds data files without a commit record" : "";
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

std::string RunDirectory::fault_of(const ObjectName& name, const std::string& save_id) const {
  // An older look can show that all is well, but no fault.
  const auto seen = seen_at(name);
  return seen && fault_in(name, save_id, &*seen).empty() ? "" : fault_in(name, save_id, nullptr);
}

std::optional<PlaceContents> RunDirectory::seen_at(const ObjectName& name) const {
  const MutexLock lock(seen_->mutex);
  const auto seen = seen_->places.find(name);
  return seen == seen_->places.end() ? std::nullopt : std::optional(seen->second);
}

std::string RunDirectory::fault_in(const ObjectName& name, const std::string& save_id, const PlaceContents* seen) const {
  try {
    const std::shared_ptr<Store> place = open(name);
    // One look, instead of a request for each file.
    const PlaceContents found = seen != nullptr ? *seen : contents_of(*place, true);
    if (!save_id.empty() && has_name(found.objects, kFindingName))
      if (const std::string finding = finding_of({name, {{}, save_id}}); !finding.empty()) return finding;
    const Metadata metadata = read_metadata(*place, found);
    const std::map<ObjectName, std::uint64_t> lengths = sizes_of(found.objects);
    for (const FileInfo& file : metadata.files) {
      const auto listed = lengths.find(file.name);
      if (listed != lengths.end() && listed->second == file.length) continue;
      std::uint64_t length = place->size_bytes(file.name);
      if (const auto other = file.length && length != *file.length ? place->fallback() : nullptr; other && other->exists(file.name))
        length = other->size_bytes(file.name);
      if (const std::string fault = length_fault(*place, file, length); !fault.empty())
        return child_url(place->url(), file.name) + ": " + fault;
    }
    return "";
  } catch (const Error& error) {
    if (!tells_of_the_record(error)) throw;
    return error.what();
  }
}

std::string RunDirectory::find_damage(const RunCheckpoint& checkpoint, const std::set<int>& first_ranks,
                                      std::uint64_t bytes_max) const {
  const std::shared_ptr<Store> place = open(checkpoint.name);
  const auto metadata = published_metadata(*place);
  if (!metadata || metadata->save_id != checkpoint.head.save_id) return "";
  std::vector<FileInfo> files = metadata->files;
  std::stable_partition(files.begin(), files.end(), [&](const FileInfo& file) {
    return std::any_of(first_ranks.begin(), first_ranks.end(),
                       [&](int rank) { return file.name.rfind(kDataFilePrefix + std::to_string(rank) + "_", 0) == 0; });
  });
  const auto fault_in = [&](Store& store, const FileInfo& file) -> std::string {
    const std::uint64_t length = store.size_bytes(file.name);
    if (length > bytes_max || !file.crc32) return "";
    bytes_max -= length;
    const std::uint32_t crc = read_crc32(store, file.name, length, 1);
    if (length == file.length && crc == file.crc32) return "";
    return file.name + " has " + std::to_string(length) + " bytes with the CRC-32 " + std::to_string(crc) + ", the record says " +
           std::to_string(*file.crc32);
  };
  const std::shared_ptr<Store> other = place->fallback();
  for (const FileInfo& file : files) {
    std::string fault = fault_in(*place, file);
    if (!fault.empty() && other && other->exists(file.name)) fault = fault_in(*other, file);  // loads use it, too
    if (!fault.empty()) return fault;
  }
  return "";
}

void RunDirectory::note_damage(const RunCheckpoint& checkpoint, const std::string& finding) const {
  const std::shared_ptr<Store> place = open_to_change(checkpoint.name);
  place->remove(kFindingName);
  if (!finding.empty()) create_whole(*place, kFindingName, checkpoint.head.save_id + "\n" + finding + "\n");
}

std::string RunDirectory::finding_of(const RunCheckpoint& checkpoint) const {
  const std::string text = read_text(*run_, checkpoint.name + "/" + kFindingName, kMarkBytesMax);
  const std::size_t line = text.find('\n') + 1;
  // Otherwise the finding is of another save: the checkpoint has been replaced.
  return line > 0 && text.compare(0, line - 1, checkpoint.head.save_id) == 0 ? text.substr(line, text.find('\n', line) - line) : "";
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
  const std::string& save_id = checkpoint.head.save_id;
  // Removal is safe only in this order of steps: see the header.
  const auto seen = seen_at(checkpoint.name);
  const PlaceContents found = seen ? *seen : place->contents();
  const std::vector<ObjectInfo>& objects = found.objects;
  // Looks twice, because a list may lag behind.
  if (has_name(objects, kPinName) || is_pinned(checkpoint.name)) return "it is pinned";
  // The process that saved this checkpoint may have died after publishing and before it removed its
  // own attempt.
  const bool has_own = has_name(found.open_attempts, save_id);
  if (found.open_attempts.size() > (has_own ? 1 : 0)) return "a save to it has begun, and has not ended";
  const auto head = read_commit_head(*place, kCommitRecordName, &found);
  if (!head || head->save_id != save_id) return "it was replaced or removed meanwhile";
  const auto may_go_on = [&] { return may_change(checkpoint.name); };
  if (!may_go_on()) return "its removal was stopped";
  Dead dead;
  const bool has_others = std::any_of(objects.begin(), objects.end(), [&](const ObjectInfo& object) {
    const auto id = save_id_of_file(object.name);
    return id ? *id != save_id : is_data(object.name);
  });
  const auto metadata = has_others ? generation_to_replace(*place).generation : std::nullopt;
  if (metadata && metadata->save_id == save_id && metadata->commit) {
    add_safetensors(*metadata, dead);
    const std::set<std::string> retired(metadata->commit->retired.begin(), metadata->commit->retired.end());
    for (const ObjectInfo& object : objects)
      if (retired.count(file_key(object.name)) > 0) dead.names.push_back(object.name);
  }
  if (has_own) place->fence(save_id);
  std::string names = "\n";  // a store may take an empty object for one that is not there yet
  for (const ObjectName& name : dead.names) names += name + "\n";
  // The point of no return. Files may go only after the record is gone for good.
  const ObjectName mark = removal_mark_name(save_id);
  place->retract(mark, names);
  dead.ids.insert(save_id);
  dead.add_fenced(found.fenced_attempts);
  if (has_own) dead.fenced.push_back(save_id);
  add_marks(*place, objects, dead);
  dead.marks.push_back(mark);
  remove_dead(*place, objects, dead, may_go_on);
  return std::nullopt;
}

std::vector<std::pair<ObjectName, std::string>> RunDirectory::remove_remains(const std::set<ObjectName>& busy, bool end_attempts,
                                                                             const MayChange& may_change,
                                                                             const Listing* listing) const {
  std::vector<std::pair<ObjectName, std::string>> faults;
  for (const ObjectName& name : listing != nullptr ? listing->without_record : run_->children()) {
    if (!is_checkpoint_name(name) || busy.count(name) > 0) continue;
    try {
      if (listing == nullptr && has_record(name)) continue;
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
  const PlaceContents found = place->contents();
  Dead dead;
  add_marks(*place, found.objects, dead);
  std::vector<std::string> ended;
  for (const std::string& id : found.open_attempts) {
    // A save or another program's attempt is running here. An id in a mark was published.
    if (!is_save_id(id) || (!end_attempts && dead.ids.count(id) == 0)) return;
    place->fence(id);
    ended.push_back(id);
  }
  const Presence record = look_twice(*place, kCommitRecordName, found.objects);
  if (record == Presence::kUnknown)
    throw Error(ErrorCode::kUnavailable,
                "cannot tell whether " + place->url() + " has a commit record: the store lists one, but a read does not find it");
  if (record == Presence::kPresent) {  // one of these saves published before it was fenced
    for (const std::string& id : ended) place->clear_attempt(id);
    return;
  }
  ended.insert(ended.end(), found.fenced_attempts.begin(), found.fenced_attempts.end());
  dead.add_fenced(std::move(ended));
  remove_dead(*place, found.objects, dead, [&] { return may_change(name); });
}

}  // namespace cairn
