// Copies objects and publishes checkpoints in the far tier.
#include <cairn/storage/stores/tier_copier.hpp>

#include <algorithm>
#include <set>
#include <utility>

#include <cairn/base/save_id.hpp>
#include <cairn/base/wait.hpp>
#include <cairn/storage/copy_checkpoint.hpp>
#include <cairn/storage/format/commit_record.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/publication.hpp>

namespace cairn {
namespace {

using SteadyClock = std::chrono::steady_clock;

ObjectName object_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }

std::optional<std::uint64_t> size_in(Store& store, const ObjectName& name) {
  try {
    return store.size_bytes(name);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNotFound) throw;
    return std::nullopt;
  }
}

// Returns the save ids that a record names: its own, and those that it retires.
std::set<std::string> ids_in(const std::optional<Metadata>& metadata) {
  std::set<std::string> ids;
  if (metadata && metadata->commit) ids.insert(metadata->commit->retired.begin(), metadata->commit->retired.end());
  if (metadata) ids.insert(metadata->save_id);
  return ids;
}

// Returns whether a save is running in the near tier, or the record there names it.
bool has_save(Store& near, const std::string& id) {
  if (has_name(near.open_attempts(), id)) return true;  // first: a publication closes it after the record is there
  return ids_in(published_metadata(near)).count(id) > 0;
}

// Also for unfinished files.
std::optional<std::string> save_id_in(std::string name) {
  if (ends_with(name, kUnfinishedEnd)) name.resize(name.size() - std::string(kUnfinishedEnd).size());
  return save_id_of_file(name);
}

std::set<std::string> ids_of_files(Store& store) {
  std::set<std::string> ids;
  for (const ObjectInfo& file : store.list(kDataFilePrefix))
    if (const auto id = save_id_in(file.name)) ids.insert(*id);
  return ids;
}

struct NearIsGone {};  // the object that is being copied

}  // namespace

// --- one object ---

bool TierCopier::may_take_over(Unfinished& seen, std::uint64_t bytes) {
  MutexLock lock(mutex_);
  const Time now = SteadyClock::now();
  if (seen.is_own) return true;
  if (bytes > seen.furthest && std::exchange(seen.furthest, bytes) > 0) last_progress_ = now;
  // Time in which this process did not look proves nothing: both may have been stopped.
  if (seen.bytes != bytes || now - seen.looked > 2 * kLookInterval) {
    seen.bytes = bytes;
    seen.changed = now;
  }
  seen.looked = now;
  return now - seen.changed >= bounded_wait(options_.takeover_after) * (1 << std::min(seen.takeovers, kTakeoversMax));
}

// Returns nothing if another process has begun the copy, or has finished it.
std::unique_ptr<ObjectWriter> TierCopier::begin_copy(Job& job, Store& far, const CreateOptions& options) {
  const ObjectName name = object_of(job.path);
  for (bool again = true;; again = false) {
    try {
      return far.create(name, options);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kNotFound && again) {
        far.create_root();
        continue;
      }
      if (error.code() != ErrorCode::kAlreadyExists) throw;
    }
    const auto unfinished = size_in(far, name + kUnfinishedEnd);
    if (!again || !unfinished || !may_take_over(job.unfinished, *unfinished)) return nullptr;
    far.remove(name + kUnfinishedEnd);
    if (!std::exchange(job.unfinished.is_own, false)) ++job.unfinished.takeovers;
    job.unfinished.bytes.reset();
  }
}

TierCopier::Outcome TierCopier::copy_object(Job& job) {
  check_wanted();
  const std::string place = parent_of(job.path);
  const ObjectName name = object_of(job.path);
  const auto near_store = near(place), far_store = far(place);
  const auto bytes = size_in(*near_store, name);
  if (!bytes) return Outcome::kNotNeeded;
  const auto look = [&] { return size_in(*far_store, name) == bytes ? Outcome::kCopied : Outcome::kWaits; };
  if (look() == Outcome::kCopied) return Outcome::kCopied;
  const auto id = save_id_of_file(name);
  const auto is_unexplained = [&] {
    return id && !far_store->has_attempt(*id) && ids_in(generation_to_replace(*far_store).generation).count(*id) == 0;
  };
  if (is_unexplained()) return has_save(*near_store, *id) ? Outcome::kWaits : Outcome::kNotNeeded;
  const std::optional<Trailer> trailer = trailer_of(*near_store, name, *bytes);
  if (far_store->exists(name)) {
    // Data files have a name of their own, and this one is sound in the near tier.
    if (!trailer)
      throw Error(ErrorCode::kCorrupt, child_url(far_store->url(), name) + " is another object than that of the near tier");
    far_store->remove(name);
  }
  const auto keep = [&] {
    if (!is_unexplained()) return Outcome::kCopied;
    far_store->fence(*id);  // a removal that ended meanwhile has not seen the object
    if (has_save(*near_store, *id)) return Outcome::kCopied;
    clear_far(place);
    return Outcome::kNotNeeded;
  };
  if (!job.donor.empty()) {
    try {
      if (far_store->link(child_url(far("")->url(), job.donor.substr(1)), name) == *bytes) return keep();
      far_store->remove(name);
    } catch (const Error&) {
      // The object is copied.
    }
  }
  CreateOptions options;
  options.appears_whole = true;
  const std::uint64_t piece_bytes = prepare_pieces(far_store->traits(), *bytes, options_.piece_bytes, options);
  const auto writer = begin_copy(job, *far_store, options);
  if (!writer) return look();
  const auto fill = [&](std::uint64_t begin, MutableByteSpan piece) {
    check_wanted();
    try {
      near_store->read(name, {{begin, piece}});
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kNotFound) throw NearIsGone();
      throw;
    }
    if (trailer) check_blocks(*trailer, begin, piece, child_url(near_store->url(), name));
  };
  std::uint64_t written = 0;  // guarded by mutex_
  const auto note_written = [&](std::size_t more) {
    MutexLock lock(mutex_);
    written += more;
    bytes_copied_ += more;
    if (written > job.unfinished.furthest) {
      job.unfinished.furthest = written;
      last_progress_ = SteadyClock::now();
    }
  };
  try {
    write_pieces(*writer, *bytes, piece_bytes, options_.copy_threads, fill, note_written);
    writer->sync(*bytes);
  } catch (const NearIsGone&) {
    return Outcome::kNotNeeded;
  } catch (const Error& error) {
    // Another process has finished this object, or has taken it over.
    if (error.code() == ErrorCode::kAlreadyExists || error.code() == ErrorCode::kNotFound) return look();
    job.unfinished.is_own = true;  // if the far tier fails, the writer cannot remove what it has written
    throw;
  }
  return keep();
}

// --- one checkpoint ---

// Returns whether the near tier has the run of a checkpoint. Removals leave it.
bool TierCopier::has_near_run(const std::string& place) const {
  const std::string run = near(parent_of(place))->url();
  return open_store(parent_url(run))->is_taken(run.substr(run.rfind('/') + 1));
}

// Judges why the near tier has no record of a checkpoint that is not copied. A removal by another
// process has ended the attempt in the far tier, unless it came before the attempt. Looks twice
// before it reports a loss, because that process may have removed the near record just now.
TierCopier::Outcome TierCopier::judge_absence(Job& job, Store& far) {
  const bool is_open = has_name(far.open_attempts(), job.save_id);
  const bool was_ended = !is_open && (job.is_announced || has_name(far.fenced_attempts(), job.save_id));
  if (was_ended || (!is_open && !job.has_failed && has_near_run(job.path))) return Outcome::kNotNeeded;
  return std::exchange(job.is_gone, true) ? Outcome::kLost : Outcome::kWaits;
}

TierCopier::Outcome TierCopier::publish(Job& job) {
  const auto near_store = near(job.path), far_store = far(job.path);
  const auto is_current = [&] {
    const auto head = near_head(*near_store);
    return head && head->save_id == job.save_id;
  };
  const auto end_attempt = [&](const std::string& id) {
    far_store->fence(id);
    if (ids_of_files(*far_store).count(id) == 0 || ids_in(generation_to_replace(*far_store).generation).count(id) > 0)
      far_store->clear_attempt(id);
  };
  const auto here = near_head(*near_store);
  if (here && here->save_id != job.save_id) {
    // Leaves the checkpoint's files alone: the process that removes the checkpoint may be removing
    // them.
    end_attempt(job.save_id);
    for (const std::string& id : ended_attempts(job.path)) end_attempt(id);
    return Outcome::kNotNeeded;
  }
  if (const auto head = far_head(*far_store); !head || head->save_id != job.save_id) {
    if (!here) return judge_absence(job, *far_store);
    // 1
    far_store->create_root();
    const bool is_own = announce(job.save_id, *far_store);
    job.is_announced = true;
    if (is_own && !is_current()) {
      if (!near_head(*near_store) && !has_near_run(job.path)) return Outcome::kWaits;  // lost since the look above
      end_attempt(job.save_id);                                                        // removed since then
      return Outcome::kNotNeeded;
    }
    // 2
    const auto record = near_store->read_end(kCommitRecordName, kCommitRecordBytesMax);
    if (!record) return Outcome::kWaits;
    const Metadata metadata = decode_commit_record(record->content, child_url(near_store->url(), kCommitRecordName));
    if (metadata.save_id != job.save_id) return Outcome::kWaits;
    if (const std::size_t missing = queue_missing(job, *near_store, *far_store, metadata); missing > 0) {
      if (missing < job.missing) {
        MutexLock lock(mutex_);
        job.changed = SteadyClock::now();
        if (job.missing != SIZE_MAX) last_progress_ = job.changed;
        job.missing = missing;
      }
      return Outcome::kWaits;
    }
    // 3
    for (const std::string& id : far_store->open_attempts())
      if (id != job.save_id && is_save_id(id)) far_store->fence(id);
    const auto there = far_head(*far_store);
    if (there && there->save_id != job.save_id && metadata.commit && there->sequence >= metadata.commit->sequence) {
      end_attempt(job.save_id);
      throw Error(ErrorCode::kCorrupt,
                  "the far tier has save " + there->save_id + " there, which is not older than " + job.save_id);
    }
    // 4
    if (!is_current()) return Outcome::kWaits;
    const std::set<std::string> named = ids_in(metadata), replaced = ids_in(generation_to_replace(*far_store).generation);
    for (const std::string& id : ids_of_files(*far_store))
      if (replaced.count(id) > 0 && named.count(id) == 0) far_store->fence(id);  // nothing will name it any more
    // 5
    try {
      far_store->publish(job.save_id, record->content, Overwrite::kAllowed);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kFenced) return Outcome::kWaits;
      // A publication that stopped half-way may have left something that blocks the next one.
      far_store->fence(job.save_id);
      announce(job.save_id, *far_store);
      throw;
    }
  }
  // 6
  far_store->fence(job.save_id);  // and with it uploads that a killed process or an outage left
  far_store->clear_attempt(job.save_id);
  try {
    sweep(job.path);
  } catch (const Error& error) {
    if (!tells_of_the_record(error)) throw;  // otherwise the next publication sweeps
  }
  evict(parent_of(job.path));
  return Outcome::kCopied;
}

// Returns whether it has opened the attempt. Otherwise it was open, perhaps by another process.
bool TierCopier::announce(const std::string& save_id, Store& far) {
  try {
    far.begin_attempt(save_id);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kAlreadyExists) return false;
    if (error.code() != ErrorCode::kFenced) throw;
    far.fence(save_id);  // finishes a fence that was cut off
    far.clear_attempt(save_id);
    far.begin_attempt(save_id);
  }
  return true;
}

// Returns how many files are missing in the far tier. Queues those that no process copies.
std::size_t TierCopier::queue_missing(const Job& job, Store& near, Store& far, const Metadata& metadata) {
  const auto there = sizes_of(far.list());
  std::vector<ObjectInfo> wanted;
  for (const FileInfo& file : metadata.files)
    if (file.length) wanted.push_back({file.name, *file.length});
  // Objects that the record does not list, such as an index or a pin.
  if (job.resumed)
    for (const ObjectInfo& object : near.list())
      if (object.name.rfind(kDataFilePrefix, 0) != 0 && object.name.find('/') == std::string::npos &&
          object.name != kCommitRecordName)
        wanted.push_back(object);
  std::size_t missing = 0;
  for (const ObjectInfo& file : wanted) {
    if (const auto found = there.find(file.name); found != there.end() && found->second == file.size_bytes) continue;
    const std::string path = job.path + "/" + file.name;
    {
      MutexLock lock(mutex_);
      if (const auto damaged = damaged_.find(path); damaged != damaged_.end()) throw Error(ErrorCode::kCorrupt, damaged->second);
    }
    const auto near_bytes = size_in(near, file.name);
    if (!near_bytes) throw Error(ErrorCode::kCorrupt, child_url(near.url(), file.name) + " is gone, and was not copied");
    if (*near_bytes != file.size_bytes)
      throw Error(ErrorCode::kCorrupt, child_url(near.url(), file.name) + " has " + std::to_string(*near_bytes) + " bytes, and " +
                                           std::to_string(file.size_bytes) + " were written");
    if (job.resumed) add_object(path, file.size_bytes);
    ++missing;
  }
  return missing;
}

// Removes the files of saves that were fenced in the far tier, or that the record of both tiers
// retires and the near tier has removed. Clears the fences of saves without files, or named by the
// record. The order of steps matters, as in storage/publication.hpp: a save that begins later has
// no file in the list, and one that was fenced is not published after the look at the record.
void TierCopier::sweep(const std::string& place) {
  const auto near_store = near(place), far_store = far(place);
  const std::vector<ObjectInfo> files = far_store->list(kDataFilePrefix);
  if (const auto here = near_head(*near_store))
    for (const std::string& id : far_store->open_attempts())
      if (is_save_id(id) && here->save_id != id) far_store->fence(id);
  const std::vector<std::string> fenced = far_store->fenced_attempts();
  std::set<std::string> kept, current, dead(fenced.begin(), fenced.end());
  for (const std::string& id : near_store->open_attempts()) kept.insert(id);
  const auto near_metadata = published_metadata(*near_store);
  const auto head = far_head(*far_store);
  const bool is_replaced = near_metadata && head && head->save_id == near_metadata->save_id;
  const auto far_metadata = is_replaced ? std::nullopt : published_metadata(*far_store);
  const std::set<std::string> near_ids = ids_of_files(*near_store);
  for (const auto* metadata : {&near_metadata, &far_metadata}) {
    if (!*metadata) continue;
    current.insert((*metadata)->save_id);
    if (!(*metadata)->commit) continue;
    // A generation whose files the near tier has removed goes here, too.
    for (const std::string& id : (*metadata)->commit->retired)
      (!is_replaced || near_ids.empty() || near_ids.count(id) > 0 ? kept : dead).insert(id);
  }
  kept.insert(current.begin(), current.end());
  for (const ObjectInfo& file : files) {
    const auto id = save_id_in(file.name);
    if (id && kept.count(*id) == 0 && dead.count(*id) > 0) far_store->remove(file.name);
  }
  std::set<std::string> left = fenced.empty() ? std::set<std::string>() : ids_of_files(*far_store);
  for (const std::string& id : ids_in(is_replaced ? near_metadata : far_metadata)) left.erase(id);
  for (const std::string& id : fenced)  // a removal of what is published has begun, and clears its mark last
    if (is_save_id(id) && current.count(id) == 0 && left.count(id) == 0) far_store->clear_attempt(id);
}

}  // namespace cairn
