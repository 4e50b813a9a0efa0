// The operations of TierCopier on the stores of both tiers.
#include <cairn/storage/stores/tier_copier.hpp>

#include <algorithm>
#include <exception>
#include <map>
#include <tuple>
#include <utility>

#include <cairn/base/digest.hpp>
#include <cairn/base/save_id.hpp>
#include <cairn/base/signals_blocked.hpp>
#include <cairn/base/wait.hpp>
#include <cairn/storage/format/commit_head.hpp>
#include <cairn/storage/format/commit_record.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/publication.hpp>

namespace cairn {
namespace {

using SteadyClock = std::chrono::steady_clock;

struct SplitPath {
  std::string place;
  ObjectName name;
};

SplitPath split_path(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return {path.substr(0, slash), path.substr(slash + 1)};
}

std::optional<std::uint64_t> size_in(Store& store, const ObjectName& name) {
  try {
    return store.size_bytes(name);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNotFound) throw;
    return std::nullopt;
  }
}

// Returns nothing for a damaged record in the far tier: the next publication replaces it.
std::optional<CommitHead> far_head(Store& far) {
  try {
    return read_commit_head(far);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCorrupt) throw;
    return std::nullopt;
  }
}

std::map<ObjectName, std::uint64_t> sizes_in(Store& store) {
  std::map<ObjectName, std::uint64_t> sizes;
  for (const ObjectInfo& object : store.list()) sizes.emplace(object.name, object.size_bytes);
  return sizes;
}

// Returns the trailer of one of Cairn's data files, which has the checksums of its blocks. Returns
// nothing for other objects. Throws kCorrupt.
std::optional<Trailer> trailer_of(Store& store, const ObjectName& name, std::uint64_t bytes) {
  if (!save_id_of_file(name)) return std::nullopt;
  const std::string object = child_url(store.url(), name);
  if (bytes < kTrailerFooterBytes) throw Error(ErrorCode::kCorrupt, object + " is cut short");
  Bytes footer(kTrailerFooterBytes, '\0');
  store.read(name, {{bytes - footer.size(), {footer.data(), footer.size()}}});
  Bytes trailer(trailer_length(footer, bytes, object), '\0');
  store.read(name, {{bytes - trailer.size(), {trailer.data(), trailer.size()}}});
  return decode_trailer(trailer, bytes, object);
}

// `begin` is a multiple of the size of a checksum block.
void check_blocks(const Trailer& trailer, std::uint64_t begin, ByteSpan bytes, const std::string& object) {
  const std::uint64_t block_bytes = trailer.checksum_block_bytes;
  const std::uint64_t end = std::min(begin + bytes.size(), trailer.content_bytes);
  for (std::uint64_t at = begin; at < end; at += block_bytes)
    if (crc32(0, bytes.subspan(at - begin, std::min(block_bytes, end - at))) !=
        trailer.block_crc32[static_cast<std::size_t>(at / block_bytes)])
      throw Error(ErrorCode::kCorrupt, object + " is damaged at offset " + std::to_string(at) + " (the checksum does not match)");
}

struct NearIsGone {};  // the object that is being copied

}  // namespace

// --- one object ---

bool TierCopier::may_take_over(const std::string& path, std::uint64_t bytes) {
  MutexLock lock(mutex_);
  const Time now = SteadyClock::now();
  Unfinished& seen = unfinished_[path];
  if (seen.is_own) return true;
  if (seen.bytes && *seen.bytes != bytes) last_progress_ = now;
  // Time in which this process did not look proves nothing: both may have been stopped.
  if (seen.bytes != bytes || now - seen.looked > 2 * kLookInterval) {
    seen.bytes = bytes;
    seen.changed = now;
  }
  seen.looked = now;
  return now - seen.changed >= bounded_wait(options_.takeover_after) * (1 << std::min(seen.takeovers, kTakeoversMax));
}

void TierCopier::note_takeover(const std::string& path) {
  MutexLock lock(mutex_);
  Unfinished& seen = unfinished_[path];
  if (!std::exchange(seen.is_own, false)) ++seen.takeovers;
  seen.bytes.reset();
}

// Returns nothing if another process has begun the copy, or has finished it.
std::unique_ptr<ObjectWriter> TierCopier::begin_copy(const std::string& path, Store& far, const CreateOptions& options) {
  const ObjectName name = split_path(path).name;
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
    if (!again || !unfinished || !may_take_over(path, *unfinished)) return nullptr;
    far.remove(name + kUnfinishedEnd);
    note_takeover(path);
  }
}

TierCopier::Copied TierCopier::copy_object(const std::string& path) {
  Copied copied = Copied::kGone;
  try {
    copied = try_copy(path);
  } catch (const NearIsGone&) {
  }
  MutexLock lock(mutex_);
  if (copied != Copied::kBusy) unfinished_.erase(path);
  return copied;
}

TierCopier::Copied TierCopier::try_copy(const std::string& path) {
  const auto [place, name] = split_path(path);
  const auto near_store = near(place), far_store = far(place);
  const auto bytes = size_in(*near_store, name);
  if (!bytes) return Copied::kGone;
  const auto is_there = [&, &object = name] { return size_in(*far_store, object) == bytes; };
  if (is_there()) return Copied::kYes;
  const std::optional<Trailer> trailer = trailer_of(*near_store, name, *bytes);
  if (far_store->exists(name)) {
    // Data files have a name of their own, and this one is sound in the near tier.
    if (!trailer)
      throw Error(ErrorCode::kCorrupt, child_url(far_store->url(), name) + " is another object than that of the near tier");
    far_store->remove(name);
  }
  const StoreTraits traits = far_store->traits();
  std::uint64_t piece_bytes = std::max(options_.piece_bytes, traits.part_bytes_min);
  if (traits.parts_max > 0) piece_bytes = std::max(piece_bytes, *bytes / traits.parts_max + 1);
  piece_bytes = (piece_bytes + kChecksumBlockBytesMax - 1) / kChecksumBlockBytesMax * kChecksumBlockBytesMax;
  CreateOptions options;
  options.appears_whole = true;
  if (traits.part_bytes_min > 0 && *bytes > piece_bytes) {
    options.part_bytes = piece_bytes;
    options.expected_bytes = *bytes;
  }
  const auto writer = begin_copy(path, *far_store, options);
  if (!writer) return is_there() ? Copied::kYes : Copied::kBusy;
  try {
    write_pieces(*near_store, *writer, name, *bytes, piece_bytes, trailer ? &*trailer : nullptr);
    writer->sync(*bytes);
  } catch (const Error& error) {
    // Another process has finished this object, or has taken it over.
    if (error.code() == ErrorCode::kAlreadyExists || error.code() == ErrorCode::kNotFound)
      return is_there() ? Copied::kYes : Copied::kBusy;
    MutexLock lock(mutex_);
    unfinished_[path].is_own = true;  // if the far tier fails, the writer cannot remove what it has written
    throw;
  }
  return Copied::kYes;
}

void TierCopier::write_pieces(Store& near, ObjectWriter& writer, const ObjectName& name, std::uint64_t bytes,
                              std::uint64_t piece_bytes, const Trailer* trailer) {
  std::atomic<std::uint64_t> next{0};
  std::exception_ptr problem;
  Mutex problem_mutex;  // for `problem`
  const auto work = [&] {
    try {
      Bytes piece;
      for (std::uint64_t begin = next.fetch_add(piece_bytes); begin < bytes; begin = next.fetch_add(piece_bytes)) {
        check_wanted();
        piece.resize(static_cast<std::size_t>(std::min(piece_bytes, bytes - begin)));
        try {
          near.read(name, {{begin, {piece.data(), piece.size()}}});
        } catch (const Error& error) {
          if (error.code() == ErrorCode::kNotFound) throw NearIsGone();
          throw;
        }
        if (trailer != nullptr) check_blocks(*trailer, begin, piece, child_url(near.url(), name));
        writer.write_at(begin, piece);
        MutexLock lock(mutex_);
        bytes_copied_ += piece.size();
        last_progress_ = SteadyClock::now();
      }
    } catch (...) {
      next = bytes;
      MutexLock lock(problem_mutex);
      if (!problem) problem = std::current_exception();
    }
  };
  std::vector<std::thread> helpers;
  const std::uint64_t pieces = (bytes + piece_bytes - 1) / piece_bytes;
  try {
    const SignalsBlocked blocked;
    while (helpers.size() + 1 < std::min<std::uint64_t>(pieces, options_.copy_threads)) helpers.emplace_back(work);
  } catch (const std::exception&) {  // no thread available: those that there are do the work
  }
  work();
  for (std::thread& helper : helpers) helper.join();
  if (problem) std::rethrow_exception(problem);
}

// --- one checkpoint ---

// Returns whether the job has ended. Otherwise it looks again later.
bool TierCopier::publish(Job& job) {
  const auto near_store = near(job.place), far_store = far(job.place);
  const auto is_current = [&] {
    const auto head = read_commit_head(*near_store);
    return head && head->save_id == job.save_id;
  };
  if (!is_current()) {
    end_attempts(job.place);  // not its files: the process that removes the checkpoint may be removing them
    return true;
  }
  if (const auto head = far_head(*far_store); !head || head->save_id != job.save_id) {
    // 1
    far_store->create_root();
    if (announce(job.save_id, *far_store) && !is_current()) {  // removed since the look above
      far_store->fence(job.save_id);
      far_store->clear_attempt(job.save_id);
      return true;
    }
    // 2
    Bytes record(static_cast<std::size_t>(near_store->size_bytes(kCommitRecordName)), '\0');
    near_store->read(kCommitRecordName, {{0, {record.data(), record.size()}}});
    const Metadata metadata = decode_commit_record(record, child_url(near_store->url(), kCommitRecordName));
    if (metadata.save_id != job.save_id) return false;
    if (const std::size_t missing = copy_missing(job, *near_store, *far_store, metadata); missing > 0) {
      if (missing != std::exchange(job.missing, missing)) job.changed = SteadyClock::now();
      return false;
    }
    // 3
    for (const std::string& id : far_store->open_attempts())
      if (id != job.save_id && is_save_id(id)) far_store->fence(id);
    const auto there = far_head(*far_store);
    if (there && there->save_id != job.save_id && metadata.commit && there->sequence >= metadata.commit->sequence) {
      far_store->fence(job.save_id);
      far_store->clear_attempt(job.save_id);
      throw Error(ErrorCode::kCorrupt, "the far tier has save " + there->save_id + " there, which is not older than " + job.save_id);
    }
    // 4
    if (!is_current()) return false;
    // 5
    try {
      far_store->publish(job.save_id, record, Overwrite::kAllowed);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kFenced) return false;
      // A publication that stopped half-way may have left something that blocks the next one.
      far_store->fence(job.save_id);
      announce(job.save_id, *far_store);
      throw;
    }
    // Uploads that a killed process or an outage left are aborted with the attempt.
    far_store->fence(job.save_id);
    far_store->clear_attempt(job.save_id);
  }
  // 6
  try {
    sweep(job.place);
  } catch (const Error& error) {
    if (!tells_of_the_record(error)) throw;  // otherwise the next publication sweeps
  }
  evict(parent_of(job.place));
  return true;
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

// Copies files that no process copies. Returns how many are missing in the far tier.
std::size_t TierCopier::copy_missing(const Job& job, Store& near, Store& far, const Metadata& metadata) {
  const auto there = sizes_in(far);
  const auto is_there = [&](const ObjectName& name, std::uint64_t bytes) {
    const auto found = there.find(name);
    return found != there.end() && found->second == bytes;
  };
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
    if (is_there(file.name, file.size_bytes)) continue;
    const std::string path = job.place + "/" + file.name;
    {
      MutexLock lock(mutex_);
      if (const auto damaged = damaged_.find(path); damaged != damaged_.end())
        throw Error(ErrorCode::kCorrupt, damaged->second);
    }
    const auto near_bytes = size_in(near, file.name);
    if (!near_bytes) throw Error(ErrorCode::kCorrupt, child_url(near.url(), file.name) + " is gone, and was not copied");
    if (*near_bytes != file.size_bytes)
      throw Error(ErrorCode::kCorrupt, child_url(near.url(), file.name) + " has " + std::to_string(*near_bytes) + " bytes, and " +
                                           std::to_string(file.size_bytes) + " were written");
    Copied copied = Copied::kGone;
    if (job.resumed) {
      {
        MutexLock lock(mutex_);
        copying_ = {path, file.size_bytes};
      }
      check_wanted();
      copied = copy_object(path);
      MutexLock lock(mutex_);
      copying_ = {};
      if (copied == Copied::kYes) ++objects_copied_;
      changed_.notify_all();
    }
    if (copied != Copied::kYes) ++missing;
  }
  return missing;
}

// Removes the files of saves that are neither published nor running. The order of steps matters, as
// in storage/publication.hpp: a save that begins later has no file in the list, and one that was
// fenced is not published after the look at the record.
void TierCopier::sweep(const std::string& place) {
  const auto near_store = near(place), far_store = far(place);
  const std::vector<ObjectInfo> files = far_store->list(kDataFilePrefix);
  const auto near_head = read_commit_head(*near_store);
  for (const std::string& id : far_store->open_attempts())
    if (is_save_id(id) && !(near_head && near_head->save_id == id)) far_store->fence(id);
  std::set<std::string> kept;
  for (const std::string& id : near_store->open_attempts()) kept.insert(id);
  const auto keep = [&](const std::optional<Metadata>& metadata) {
    if (!metadata) return;
    kept.insert(metadata->save_id);
    if (metadata->commit) kept.insert(metadata->commit->retired.begin(), metadata->commit->retired.end());
  };
  const auto near_metadata = published_metadata(*near_store);
  keep(near_metadata);
  const auto head = far_head(*far_store);
  if (!near_metadata || !head || head->save_id != near_metadata->save_id) keep(published_metadata(*far_store));
  for (const ObjectInfo& file : files) {
    std::string name = file.name;
    if (ends_with(name, kUnfinishedEnd)) name.resize(name.size() - std::string(kUnfinishedEnd).size());
    const auto id = save_id_of_file(name);
    if (id && kept.count(*id) == 0) far_store->remove(file.name);
  }
  for (const std::string& id : far_store->fenced_attempts())
    if (is_save_id(id)) far_store->clear_attempt(id);
}

// --- a run ---

bool TierCopier::is_known(const std::string& place) {
  std::string run = place;
  {
    MutexLock lock(mutex_);
    auto found = known_.find(run);
    if (found == known_.end() && !place.empty()) found = known_.find(run = parent_of(place));
    if (found == known_.end()) return false;
  }
  const auto store = near(run);
  bool has_record = store->exists(kCommitRecordName);
  for (const ObjectName& child : store->children()) has_record = has_record || store->exists(child + "/" + kCommitRecordName);
  MutexLock lock(mutex_);
  const auto found = known_.find(run);
  if (found == known_.end()) return false;
  found->second = found->second || has_record;
  if (has_record || !found->second) return true;
  known_.erase(found);  // it was lost
  return false;
}

bool TierCopier::is_copied(const std::string& place, const std::string& save_id) {
  {
    MutexLock lock(mutex_);
    for (const auto& job : jobs_)
      if (job->kind == Job::kPublish && job->place == place && job->save_id == save_id) return false;
  }
  // Unknown is not "not copied": retention would remove the last checkpoint that the far tier has.
  if (is_failing())
    throw Error(ErrorCode::kUnavailable, "cannot tell whether " + url(place) + " is copied: the far tier is not available");
  try {
    const auto head = far_head(*far(place));
    return head && head->save_id == save_id;
  } catch (const Error& error) {
    if (!tells_of_the_record(error)) throw;
    return false;
  }
}

void TierCopier::clear_far(const std::string& place) {
  if (near(place)->exists(kCommitRecordName) || far(place)->exists(kCommitRecordName)) return;
  sweep(place);
  far(place)->remove_root();
}

void TierCopier::begin_attempt(Store& near, const std::string& save_id) {
  MutexLock lock(near_mutex_);
  near.begin_attempt(save_id);
}

void TierCopier::evict(const std::string& run) {
  std::vector<std::tuple<std::uint64_t, std::string, std::string>> copied;  // sequence, save id, place
  for (const ObjectName& name : near(run)->children()) {
    if (part_of_name(name)) continue;  // `run` is one checkpoint, whose ranks saved for themselves
    const std::string place = run + "/" + name;
    try {
      const auto here = read_commit_head(*near(place));
      if (!here || near(place)->list(kDataFilePrefix).empty()) continue;
      const auto there = far_head(*far(place));
      if (there && there->save_id == here->save_id) copied.emplace_back(here->sequence, here->save_id, place);
    } catch (const Error& error) {
      if (!tells_of_the_record(error)) throw;
    }
  }
  std::sort(copied.rbegin(), copied.rend());
  for (std::size_t i = options_.keep_near; i < copied.size(); ++i) drop_data(std::get<2>(copied[i]), std::get<1>(copied[i]));
}

// Removes the data files of a copied checkpoint from the near tier. Its record stays, so that the
// near tier alone tells what the run has.
void TierCopier::drop_data(const std::string& place, const std::string& save_id) {
  const auto near_store = near(place);
  const auto there = sizes_in(*far(place));
  MutexLock lock(near_mutex_);
  if (!near_store->open_attempts().empty()) return;
  const auto head = read_commit_head(*near_store);
  if (!head || head->save_id != save_id) return;
  for (const ObjectInfo& object : near_store->list(kDataFilePrefix)) {
    const auto found = there.find(object.name);
    if (found != there.end() && found->second == object.size_bytes) near_store->remove(object.name);
  }
}

// Removes a checkpoint from the near tier of which the far tier has a later version. If an attempt
// is open there, its files stay.
void TierCopier::drop_stale(const std::string& place, const std::string& save_id) {
  const auto near_store = near(place);
  {
    MutexLock lock(near_mutex_);
    const auto head = read_commit_head(*near_store);
    if (!head || head->save_id != save_id) return;
    near_store->retract();
  }
  for (const ObjectInfo& object : near_store->list(kDataFilePrefix))
    if (save_id_of_file(object.name) == save_id) near_store->remove(object.name);
  near_store->remove_root();
}

// Returns the attempts in the far tier whose save is neither that of the near tier's record nor
// running there.
std::vector<std::string> TierCopier::ended_attempts(const std::string& place) {
  std::vector<std::string> ended = far(place)->open_attempts();
  if (ended.empty()) return ended;
  const auto near_store = near(place);
  const std::vector<std::string> running = near_store->open_attempts();
  const auto here = read_commit_head(*near_store);
  ended.erase(std::remove_if(ended.begin(), ended.end(),
                             [&](const std::string& id) {
                               return !is_save_id(id) || (here && here->save_id == id) ||
                                      std::find(running.begin(), running.end(), id) != running.end();
                             }),
              ended.end());
  return ended;
}

void TierCopier::end_attempts(const std::string& place) {
  const auto far_store = far(place);
  for (const std::string& id : ended_attempts(place)) {
    far_store->fence(id);
    far_store->clear_attempt(id);
  }
}

// Only for a process that saves to the run: on another machine the near tier is another, and then
// these are the copies of a process that lives.
void TierCopier::end_lost_copies(const std::string& run) {
  std::set<ObjectName> names{""};
  for (ObjectName& name : far(run)->children()) names.insert(std::move(name));
  for (const ObjectName& name : names) {
    const std::string place = name.empty() ? run : run + "/" + name;
    try {
      end_attempts(place);
      if (is_checkpoint_name(name)) clear_far(place);
    } catch (const Error& error) {
      if (!tells_of_the_record(error)) throw;
      write_log(LogLevel::kWarning, -1, "cannot clear what was lost of " + url(place) + ": " + error.what());
    }
  }
}

void TierCopier::begin(const std::string& run) {
  bool is_resumed = false;
  {
    MutexLock lock(mutex_);
    is_resumed = resumed_.count(run) > 0;
  }
  if (!is_resumed) resume(run);
  {
    MutexLock lock(mutex_);
    lost_in_.erase(run);
  }
  end_lost_copies(run);
}

std::vector<LostCheckpoint> TierCopier::resume(const std::string& run) {
  std::set<ObjectName> names{""};
  for (const auto& store : {near(run), far(run)})
    for (ObjectName& name : store->children()) names.insert(std::move(name));
  std::vector<LostCheckpoint> lost;
  bool has_all = true;  // the near tier has the record of each checkpoint in the far one
  bool has_any = false;
  for (const ObjectName& name : names) {
    const std::string place = name.empty() ? run : run + "/" + name;
    try {
      const auto here = read_commit_head(*near(place));
      const auto there = far_head(*far(place));
      has_any |= here.has_value();
      if (here && there && there->save_id != here->save_id && there->sequence >= here->sequence) {
        has_all = false;
        {
          MutexLock lock(mutex_);
          known_.erase(run);
        }
        drop_stale(place, here->save_id);
      } else if (here && !(there && there->save_id == here->save_id)) {
        add_checkpoint(place, here->save_id, true);
      } else if (!here && (there || far(place)->is_taken(kCommitRecordName)) && !near(place)->is_taken(kCommitRecordName)) {
        has_all = false;
      }
      if (here) continue;
      for (const std::string& id : ended_attempts(place)) {
        if (there && there->save_id == id) continue;
        lost.push_back({url(place), id});
        write_log(LogLevel::kWarning, -1,
                  split_path(place).name + " was saved to the near tier and lost before its copy to the far tier was complete, " +
                      "unless a process with another near tier still copies it: " + url(place) + ", save " + id);
      }
    } catch (const Error& error) {
      if (!tells_of_the_record(error)) throw;
      has_all = false;
      write_log(LogLevel::kWarning, -1, "cannot tell whether " + url(place) + " is copied: " + error.what());
    }
  }
  evict_later(run);
  MutexLock lock(mutex_);
  resumed_.insert(run);
  if (!lost.empty()) lost_in_.insert(run);
  if (has_all)
    known_[run] = has_any;
  else
    known_.erase(run);
  return lost;
}

}  // namespace cairn
