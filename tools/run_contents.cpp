#include <cairn/tools/run_contents.hpp>

#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include <cairn/storage/format/names.hpp>
#include <cairn/storage/presence.hpp>
#include <cairn/storage/read_metadata.hpp>
#include <cairn/storage/runs/resume_order.hpp>
#include <cairn/tools/commands.hpp>

namespace cairn::tools {
namespace {

constexpr std::string_view kFailurePrefix = "failure-";

std::optional<double> written_at(const std::string& url, const char* record = kCommitRecordName) {
  const auto path = local_path(url);
  struct stat status {};
  if (!path || ::stat((*path / record).c_str(), &status) != 0) return std::nullopt;
  return static_cast<double>(status.st_mtim.tv_sec) + static_cast<double>(status.st_mtim.tv_nsec) * 1e-9;
}

// Fills in the fields that only the whole record contains.
void read_record(const RunDirectory& run, ListedCheckpoint& listed) {
  const auto place = run.open(listed.name);
  const Metadata metadata = read_metadata(*place);
  listed.by_cairn = metadata.commit.has_value();
  listed.head.save_id = metadata.save_id;
  int ranks = 0;
  for (const FileInfo& file : metadata.files) {
    ranks = std::max(ranks, rank_of_file(file.name).value_or(-1) + 1);
    listed.bytes += file.length ? *file.length : place->size_bytes(file.name);
    if (!file.written_by.empty()) listed.shared_bytes += file.length.value_or(0);
  }
  if (metadata.commit)
    listed.world_size = metadata.commit->world_size;
  else if (ranks > 0)
    listed.world_size = ranks;
}

// Returns nothing for a checkpoint that was removed or replaced meanwhile.
std::optional<ListedCheckpoint> look_at(const RunDirectory& run, const RunCheckpoint& checkpoint) {
  const ObjectName& name = checkpoint.name;
  ListedCheckpoint listed;
  static_cast<RunCheckpoint&>(listed) = checkpoint;
  listed.by_cairn = checkpoint.head.sequence > 0;
  if (!listed.by_cairn) listed.head.step = step_of_name(name);
  listed.saved_at = written_at(child_url(run.url(), name));
  try {
    listed.pinned = run.is_pinned(name);
    listed.fault = run.fault_of(name, checkpoint.head.save_id);
    read_record(run, listed);
  } catch (const Error& error) {
    if (!tells_of_the_record(error) && error.code() != ErrorCode::kPermission) throw;
    if (listed.fault.empty()) listed.fault = error.what();
    if (error.code() == ErrorCode::kPermission) return listed;
  }
  if (!listed.fault.empty() && run.is_gone(checkpoint)) return std::nullopt;
  return listed;
}

// Returns what the names and sizes of files tell of a checkpoint of torch_checkpointing. Its record
// does not tell whether the other files are whole.
ListedCheckpoint look_at_items(const RunDirectory& run, const ObjectName& name) {
  ListedCheckpoint listed;
  listed.name = name;
  listed.by_torch_checkpointing = true;
  listed.head.step = step_of_name(name);
  listed.saved_at = written_at(child_url(run.url(), name), kItemsRecordName);
  for (const ObjectInfo& object : run.open(name)->list()) {
    listed.bytes += object.size_bytes;
    const auto rank = rank_of_file(object.name);
    if (rank) listed.world_size = std::max(listed.world_size.value_or(0), *rank + 1);
    if (rank && object.size_bytes == 0) listed.fault = object.name + " is empty: the save failed";
  }
  return listed;
}

void sort_by_resume_order(const RunDirectory& run, RunDirectory::Listing listing, std::vector<ListedCheckpoint>& checkpoints) {
  std::map<std::string, std::size_t> places;
  try {
    for (const RunCheckpoint& candidate : resume_order(run, std::move(listing)).candidates)
      places.emplace(candidate.name, places.size());
  } catch (const Error& error) {
    // Access to a record was denied. restore_latest throws as well, and the list shows the fault.
    if (error.code() != ErrorCode::kPermission) throw;
    return;
  }
  for (ListedCheckpoint& checkpoint : checkpoints) checkpoint.may_resume = places.count(checkpoint.name) > 0;
  const auto place_of = [&](const ListedCheckpoint& checkpoint) {
    return checkpoint.may_resume ? places.at(checkpoint.name) : places.size();
  };
  std::stable_sort(checkpoints.begin(), checkpoints.end(), [&](const auto& a, const auto& b) { return place_of(a) < place_of(b); });
}

}  // namespace

// Returns whether torch_checkpointing wrote a place. A place that may not be read is none.
bool holds_items(const RunDirectory& run, const ObjectName& name) {
  try {
    if (run.has_record(name) || run.is_link(name)) return false;
    // Other places beside the checkpoints may have much below them, and are not listed.
    const auto place = run.open(name);
    return (is_checkpoint_name(name) || place->exists(kItemsRecordName)) && is_torch_checkpointing(*place);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kPermission) throw;
    return false;
  }
}

std::vector<Leftover> leftovers_of(const RunDirectory& run) {
  std::vector<Leftover> leftovers;
  const auto store = open_store(run.url());
  for (const ObjectName& name : store->children()) {
    if (!is_checkpoint_name(name)) continue;
    try {
      if (run.has_record(name) || run.is_link(name) || holds_items(run, name)) continue;
      const auto place = run.open(name);
      const auto other = place->fallback();  // it has the attempts of checkpoints that were lost with the near tier
      const bool is_open = !place->open_attempts().empty() || (other && !other->open_attempts().empty());
      Leftover leftover{name, 0, is_open, !run.unrecorded({name}).empty(), ""};
      const std::vector<ObjectInfo> objects = place->list();
      for (const ObjectInfo& object : objects) {
        leftover.bytes += object.size_bytes;
        if (leftover.by_ranks.empty()) leftover.by_ranks = why_by_one_rank(object.name);
      }
      // Skips a place that was removed meanwhile, or of which a bucket has only a fence mark.
      if (objects.empty() && !leftover.is_open && !store->is_taken(name)) continue;
      leftovers.push_back(std::move(leftover));
    } catch (const Error& error) {  // it may not be looked into, and is listed as a checkpoint with this fault
      if (!tells_of_the_record(error) && error.code() != ErrorCode::kPermission) throw;
    }
  }
  return leftovers;
}

std::vector<ObjectName> places_of_run(const std::string& url) {
  const auto store = open_store(url);
  auto places = store->children();
  std::string what = has_records(*store) ? "`cairn inspect` shows what it holds" : "";
  for (auto place = places.begin(); what.empty() && place != places.end(); ++place) what = why_by_one_rank(*place);
  if (!what.empty())
    throw WrongUse(fmt::format("{} is a checkpoint, not a run: {}; its run may be {}", printable(store->url()), what,
                               printable(parent_url(store->url()))));
  if (places.empty() && store->list().empty()) {
    std::error_code error;
    const auto path = local_path(url);
    const bool exists = path && std::filesystem::is_directory(*path, error);
    throw WrongUse(fmt::format("there is no run at {}: {}", printable(store->url()),
                               exists ? "the directory is empty" : "nothing is there"));
  }
  return places;
}

RunContents look_at_run(const std::string& url) {
  const std::vector<ObjectName> places = places_of_run(url);
  const RunDirectory run(url);
  RunDirectory::Listing listing = run.list();
  RunContents contents;
  for (const RunCheckpoint& checkpoint : listing.checkpoints)
    if (auto listed = look_at(run, checkpoint)) contents.checkpoints.push_back(std::move(*listed));
  for (const ObjectName& name : listing.others)
    if (auto listed = look_at(run, {name, {}})) contents.checkpoints.push_back(std::move(*listed));
  for (const ObjectName& name : listing.without_record)
    if (holds_items(run, name)) contents.checkpoints.push_back(look_at_items(run, name));
  sort_by_resume_order(run, std::move(listing), contents.checkpoints);
  contents.leftovers = leftovers_of(run);
  for (const ObjectName& name : places)
    if (name.compare(0, kFailurePrefix.size(), kFailurePrefix) == 0) contents.failure_reports.push_back(name);
  return contents;
}

}  // namespace cairn::tools
