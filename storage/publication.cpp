#include <cairn/storage/publication.hpp>

#include <algorithm>
#include <future>
#include <limits>
#include <system_error>

#include <cairn/base/clock.hpp>
#include <cairn/base/log.hpp>
#include <cairn/base/signals_blocked.hpp>
#include <cairn/storage/format/commit_footer.hpp>
#include <cairn/storage/format/commit_head.hpp>
#include <cairn/storage/format/commit_record.hpp>
#include <cairn/storage/format/names.hpp>

namespace cairn {
namespace {

// A record that is replaced while it is read is read again. So many replacements in a row are no
// coincidence.
constexpr int kReadTriesMax = 8;
// No run counts up to a larger sequence, so a larger one is damage. Continuing from it would leave
// no room above.
constexpr std::uint64_t kSequenceMax = std::numeric_limits<std::uint64_t>::max() / 2;

// Reads what `end` lacks of the last `bytes` of an object.
void extend(Store& store, const ObjectName& name, ObjectEnd& end, std::uint64_t bytes) {
  if (bytes <= end.content.size()) return;
  if (bytes > kCommitRecordBytesMax)
    throw Error(ErrorCode::kUnsupported, "cannot read " + child_url(store.url(), name) + ": it has " + std::to_string(bytes) +
                                             " bytes, and a commit record at most " + std::to_string(kCommitRecordBytesMax));
  std::string content(bytes, '\0');
  const std::size_t rest = content.size() - end.content.size();
  store.read(name, {{end.object_bytes - bytes, {content.data(), rest}}});
  end.content.copy(content.data() + rest, end.content.size());
  end.content = std::move(content);
}

std::optional<Metadata> decoded_record(Store& store, const ObjectName& name, const NeededNames* needed) {
  const std::string what = child_url(store.url(), name);
  std::string before;
  for (int tries = 1;; ++tries) {
    const bool last = tries == kReadTriesMax;
    std::optional<ObjectEnd> record;
    try {
      record = store.read_end(name, kRecordEndBytes);
      if (!record) return std::nullopt;
      // All of a smaller record has been read, and is checked as a whole.
      if (needed && record->content.size() < record->object_bytes) {
        extend(store, name, *record, commit_section_bytes(*record));
        if (auto metadata = decode_commit_section(*record, what, *needed)) return metadata;
      }
      extend(store, name, *record, record->object_bytes);
    } catch (const Error& error) {
      // The record was replaced by a shorter one, or removed, after its size was read.
      if (last || (error.code() != ErrorCode::kNotFound && error.code() != ErrorCode::kCorrupt)) throw;
      continue;
    }
    try {
      return decode_commit_record(record->content, what, needed);
    } catch (const Error&) {
      // The same bytes twice are the real content, not parts of two records.
      if (last || (tries > 1 && record->content == before)) throw;
    }
    before = std::move(record->content);
  }
}

// Names of files, and save ids. A save id stands for all files of its save.
using FileSet = std::set<std::string>;

bool has(const FileSet& files, const std::string& name) { return files.count(name) > 0 || files.count(file_key(name)) > 0; }

void add_generation(FileSet& files, const Metadata& metadata) {
  files.insert(metadata.save_id);
  for (const FileInfo& file : metadata.files) files.insert(file.name);
}

// Returns how many entries of CommitInfo::retired name the first `keep` generations. The names of
// PyTorch's files, which come last, belong to one generation.
std::size_t entries_kept(const std::vector<std::string>& retired, std::size_t keep) {
  const auto ids = static_cast<std::size_t>(std::count_if(retired.begin(), retired.end(), is_save_id));
  return ids < keep ? retired.size() : keep;
}

// Larger than any sequence that a run reaches by counting.
std::uint64_t sequence_of_now() {
  const auto now = std::chrono::duration_cast<std::chrono::milliseconds>(system_clock().wall_now().time_since_epoch());
  return static_cast<std::uint64_t>(std::max<std::int64_t>(now.count(), 1));
}

// Returns whether `act` succeeded. Work that the store refuses is left for a later clean-up.
template <class Act>
bool succeeds(Act act) {
  try {
    act();
    return true;
  } catch (const Error&) {
    return false;
  }
}

// Returns the commit sequence in the record `name`; 0 if there is no record of Cairn's; nothing if
// there is one that cannot or must not be read. Throws the store's other errors, and kPermission in
// a foreign place.
std::optional<std::uint64_t> sequence_in(Store& run, const ObjectName& name, const PlaceContents* seen, bool is_foreign = false) {
  try {
    const auto head = read_commit_head(run, name, seen);
    if (head && head->sequence > kSequenceMax) return std::nullopt;
    return head ? head->sequence : 0;
  } catch (const Error& error) {
    if (!tells_of_the_record(error) && (is_foreign || error.code() != ErrorCode::kPermission)) throw;
    return std::nullopt;
  }
}

// Adds the generation that ".metadata" names now, unless that is `current`.
void keep_published(Store& store, const Metadata& current, FileSet& kept) {
  std::optional<CommitHead> head;
  succeeds([&] { head = read_commit_head(store); });  // on failure, the whole record is read below
  if (head && head->save_id == current.save_id) return;
  const auto published = published_metadata(store);
  if (!published) return;
  add_generation(kept, *published);
  if (published->commit) kept.insert(published->commit->retired.begin(), published->commit->retired.end());
}

}  // namespace

std::optional<Metadata> published_metadata(Store& store, const ObjectName& name, const NeededNames* needed) {
  try {
    return decoded_record(store, name, needed);
  } catch (const Error& error) {
    const std::shared_ptr<Store> other = error.code() == ErrorCode::kCorrupt ? store.fallback() : nullptr;
    if (!other || !other->exists(name)) throw;
    write_log(LogLevel::kWarning, -1, std::string(error.what()) + "; the record at " + other->url() + " is used instead");
    return decoded_record(*other, name, needed);
  }
}

Replaced generation_to_replace(Store& store) {
  Replaced replaced;
  try {
    replaced.generation = published_metadata(store);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCorrupt && error.code() != ErrorCode::kUnsupported) throw;
    replaced.is_known = false;
  }
  return replaced;
}

std::uint64_t CommitSequence::next(const std::shared_ptr<Store>& run, const std::string& own_url, int rank) {
  std::vector<ObjectName> own, others;
  std::uint64_t largest = 0;
  RunView found;
  const auto look_at = [&](const ObjectName& name, const PlaceContents* seen) {
    largest = std::max(largest, sequence_in(*run, name, seen).value_or(sequence_of_now() - 1));
  };
  try {
    found = run->look();
    for (ObjectName& child : found.places) {
      const std::string url = child_url(run->url(), child);
      if (url == own_url || passed_over_.count(url) > 0) continue;
      // Places named like Cairn's are read in any case: the store's errors about them fail the
      // save. Other directories may belong to anybody and may hang.
      const PlaceContents* const seen = found.at(child);
      const bool is_read = seen != nullptr && seen->record.object_bytes > 0;
      (is_checkpoint_name(child) || is_read ? own : others).push_back(std::move(child));
    }
    // The record may be gone, and its number must not be used again.
    if (found.latest) largest = found.latest->sequence;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kPermission) throw;
    largest = sequence_of_now() - 1;
  }
  const PlaceContents* const root = found.at("");
  if (root == nullptr || has_name(root->objects, kCommitRecordName)) look_at(kCommitRecordName, root);
  for (const ObjectName& place : own) look_at(record_below(place), found.at(place));
  return std::max(largest, largest_of_others(run, others, rank)) + 1;
}

void CommitSequence::pass_over(const Store& run, const ObjectName& place, const std::string& why, int rank) {
  const std::string url = child_url(run.url(), place);
  passed_over_.insert(url);
  write_log(LogLevel::kWarning, rank,
            "cannot tell whether there is a checkpoint (" + why + "); this place is ignored from now on: " + url);
}

std::uint64_t CommitSequence::largest_of_others(const std::shared_ptr<Store>& run, const std::vector<ObjectName>& places,
                                                int rank) {
  std::uint64_t largest = 0;
  for (const ObjectName& place : places) {
    const auto look = std::make_shared<std::packaged_task<std::uint64_t()>>(
        [run, name = record_below(place)] { return sequence_in(*run, name, nullptr, true).value_or(sequence_of_now() - 1); });
    std::future<std::uint64_t> found = look->get_future();
    bool looks_apart = patience_.has_value();
    try {
      if (looks_apart) start_thread("cairn-look", [look] { (*look)(); }).detach();  // not joined: it may hang
    } catch (const std::system_error&) {  // no thread available: read on this one
      looks_apart = false;
    }
    if (!looks_apart) (*look)();
    if (looks_apart && found.wait_for(*patience_) != std::future_status::ready) {
      pass_over(*run, place, "it did not answer in time", rank);
      continue;
    }
    try {
      largest = std::max(largest, found.get());
    } catch (const std::exception& error) {
      pass_over(*run, place, error.what(), rank);
    }
  }
  return largest;
}

std::uint64_t commit_sequence_after(const Replaced& replaced) {
  const auto& generation = replaced.generation;
  if (!replaced.is_known || (generation && generation->commit && generation->commit->sequence > kSequenceMax))
    return sequence_of_now();
  return generation && generation->commit ? generation->commit->sequence + 1 : 1;
}

std::vector<std::string> retired_generations(Store& store, const std::optional<Metadata>& replaced, std::size_t keep) {
  std::vector<std::string> retired;
  if (!replaced) return retired;
  if (replaced->commit) {
    retired.push_back(replaced->save_id);
    for (const std::string& entry : replaced->commit->retired)
      if (is_save_id(entry) || is_foreign_data_file(entry)) retired.push_back(entry);
  } else {
    for (const FileInfo& file : replaced->files)
      if (is_foreign_data_file(file.name)) retired.push_back(file.name);
  }
  const std::size_t kept = entries_kept(retired, keep);
  if (kept == retired.size()) return retired;
  FileSet there;
  for (const ObjectInfo& file : store.list(kDataFilePrefix)) there.insert(file_key(file.name));
  const auto first_old = retired.begin() + static_cast<std::ptrdiff_t>(kept);
  retired.erase(std::remove_if(first_old, retired.end(), [&](const std::string& entry) { return !has(there, entry); }),
                retired.end());
  return retired;
}

std::vector<ObjectName> remove_leftovers(Store& store, const Metadata& current, const std::optional<Metadata>& replaced,
                                         std::size_t keep) {
  // The target of a link may belong to another run. Its files are not ours to remove.
  if (store.leads_elsewhere()) return {};
  FileSet kept, dead;
  add_generation(kept, current);
  if (replaced) add_generation(kept, *replaced);
  if (current.commit) {
    const std::vector<std::string>& retired = current.commit->retired;
    const std::size_t entries = entries_kept(retired, keep);
    for (std::size_t i = 0; i < retired.size(); ++i) (i < entries ? kept : dead).insert(retired[i]);
  }

  // Clean-up is safe only in this order of steps: see the header.
  const PlaceContents found = store.contents();
  std::vector<ObjectInfo> files;
  std::vector<std::string> fenced = found.fenced_attempts, marked;
  for (const ObjectInfo& object : found.objects) {
    if (object.name.rfind(kDataFilePrefix, 0) == 0) files.push_back(object);
    if (auto id = save_id_of_mark(object.name)) marked.push_back(*std::move(id));
  }
  for (const std::string& id : found.open_attempts) {
    // Cairn did not make such an id, so it must not end that attempt.
    if (!is_save_id(id)) continue;
    if (succeeds([&] { store.fence(id); }))
      fenced.push_back(id);
    else
      kept.insert(id);
  }
  for (const auto* ids : {&fenced, &marked}) dead.insert(ids->begin(), ids->end());
  if (dead.empty()) return {};
  keep_published(store, current, kept);

  std::vector<ObjectName> removed;
  std::set<std::string> stuck;  // saves with a file that could not be removed; their attempts stay fenced
  for (const ObjectInfo& file : files) {
    if (!has(dead, file.name) || has(kept, file.name)) continue;
    if (succeeds([&] { store.remove(file.name); }))
      removed.push_back(file.name);
    else
      stuck.insert(file_key(file.name));
  }
  for (const std::string& id : marked)
    if (!has(kept, id) && stuck.count(id) == 0) succeeds([&, &save_id = id] { store.remove(removal_mark_name(save_id)); });
  for (const std::string& id : fenced) {
    if (!is_save_id(id) || stuck.count(id) > 0) continue;
    succeeds([&] { store.clear_attempt(id); });
  }
  return removed;
}

bool settle_attempt(Store& store, const std::string& save_id) {
  // First the fence, then the look: a record that is not there after the fence can never appear.
  store.fence(save_id);
  const auto published = published_metadata(store);
  if (!published || published->save_id != save_id) return false;
  succeeds([&] { store.clear_attempt(save_id); });
  return true;
}

void discard_save(Store& store, const std::string& save_id) noexcept {
  try {
    if (settle_attempt(store, save_id)) return;
    for (const ObjectInfo& file : store.list(kDataFilePrefix))
      if (save_id_of_file(file.name) == save_id) store.remove(file.name);
    store.clear_attempt(save_id);
    store.remove_root();
  } catch (const std::exception&) {
  }
}

bool remove_unfinished(Store& store) {
  const Replaced there = generation_to_replace(store);
  return there.is_known && !remove_leftovers(store, there.generation.value_or(Metadata()), std::nullopt).empty();
}

}  // namespace cairn
