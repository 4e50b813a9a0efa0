// Compares a run in both tiers: which of its checkpoints are copied, or lost, or are to be removed
// from the near tier. tier_copies.cpp copies them.
#include <cairn/storage/stores/tier_copier.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include <cairn/base/error.hpp>
#include <cairn/base/log.hpp>
#include <cairn/base/save_id.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/presence.hpp>
#include <cairn/storage/publication.hpp>

namespace cairn {

std::optional<CommitHead> TierCopier::near_head(Store& near) {
  if (auto head = read_commit_head(near)) return head;
  const auto metadata = published_metadata(near);
  return metadata && metadata->commit ? read_commit_head(near) : std::nullopt;
}

std::optional<CommitHead> TierCopier::far_head(Store& far) {
  try {
    return read_commit_head(far);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCorrupt) throw;
    return std::nullopt;
  }
}

bool TierCopier::is_known(const std::string& place) {
  std::string run = place;
  {
    MutexLock lock(mutex_);
    if (!runs_[run].known) run = parent_of(place);
    if (!runs_[run].known) return false;
  }
  const auto store = near(run);
  bool has_record = store->exists(kCommitRecordName);
  for (const ObjectName& child : store->children()) has_record = has_record || store->exists(child + "/" + kCommitRecordName);
  MutexLock lock(mutex_);
  std::optional<bool>& found = runs_[run].known;
  if (!found) return false;
  if (has_record || !*found) {
    found = has_record;
    return true;
  }
  found.reset();  // it was lost
  return false;
}

bool TierCopier::is_copied(const std::string& place, const std::string& save_id) {
  if (is_queued(place, save_id)) return false;
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
  const std::map<ObjectName, std::uint64_t> there = sizes_of(far(place)->list(kDataFilePrefix));
  MutexLock lock(near_mutex_);
  const auto head = read_commit_head(*near_store);
  if (!head || head->save_id != save_id) return;
  for (const std::string& id : near_store->open_attempts()) {
    if (id != save_id) return;
    // Its process died after the record was published and before the attempt was removed.
    near_store->fence(id);
    near_store->clear_attempt(id);
  }
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
    const auto head = near_head(*near_store);
    const auto there = published_metadata(*far(place));  // read whole: a damaged record must not replace a sound one
    if (!head || head->save_id != save_id || !there || !there->commit || there->save_id == save_id ||
        there->commit->sequence < head->sequence)
      return;
    near_store->fence(save_id);  // marks what is removed, in case of a crash
    near_store->retract();
  }
  for (const ObjectInfo& object : near_store->list(kDataFilePrefix))
    if (save_id_of_file(object.name) == save_id) near_store->remove(object.name);
  near_store->clear_attempt(save_id);
  near_store->remove_root();
}

// Returns the attempts in the far tier whose save is neither that of the near tier's record nor
// running there, and is not being copied by this process, which judges why a record is absent.
// Throws kCorrupt if the near tier's record is damaged.
std::vector<std::string> TierCopier::ended_attempts(const std::string& place) {
  std::vector<std::string> ended = far(place)->open_attempts();
  if (ended.empty()) return ended;
  const auto near_store = near(place);
  const std::vector<std::string> running = near_store->open_attempts();
  const auto here = near_head(*near_store);
  const auto is_live = [&](const std::string& id) {
    return !is_save_id(id) || (here && here->save_id == id) || has_name(running, id) || is_queued(place, id);
  };
  ended.erase(std::remove_if(ended.begin(), ended.end(), is_live), ended.end());
  return ended;
}

// Only for a process that saves to the run: on another machine the near tier is another, and then
// these are the copies of a process that lives.
void TierCopier::end_lost_copies(const std::string& run) {
  std::set<ObjectName> names{""};
  for (ObjectName& name : far(run)->children()) names.insert(std::move(name));
  for (const ObjectName& name : names) {
    const std::string place = name.empty() ? run : run + "/" + name;
    try {
      const auto far_store = far(place);
      for (const std::string& id : ended_attempts(place)) far_store->fence(id);
      if (!far_store->fenced_attempts().empty()) clear_far(place);
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
    is_resumed = runs_[run].is_resumed;
  }
  if (!is_resumed) resume(run);
  {
    MutexLock lock(mutex_);
    runs_[run].is_begun = true;
    for (auto one = given_up_.begin(); one != given_up_.end();)
      one = !one->second.empty() && parent_of(one->first) == run ? given_up_.erase(one) : std::next(one);
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
      const auto here = near_head(*near(place));
      const auto there = far_head(*far(place));
      has_any |= here.has_value();
      if (here && there && there->save_id != here->save_id && there->sequence >= here->sequence) {
        has_all = false;
        {
          MutexLock lock(mutex_);
          runs_[run].known.reset();
        }
        drop_stale(place, here->save_id);
      } else if (here && (!there || there->save_id != here->save_id ||
                          (!near(place)->list(kDataFilePrefix).empty() && far(place)->has_attempt(here->save_id)))) {
        add_checkpoint(place, here->save_id, true);  // also if it is published, but its attempt has not ended
      } else if (!here && (there || far(place)->is_taken(kCommitRecordName)) && !near(place)->is_taken(kCommitRecordName)) {
        has_all = false;
      }
      if (here) continue;
      for (const std::string& id : ended_attempts(place))
        if (!there || there->save_id != id) lost.push_back({url(place), id});
    } catch (const Error& error) {
      if (!tells_of_the_record(error)) throw;
      has_all = false;
      write_log(LogLevel::kWarning, -1, "cannot tell whether " + url(place) + " is copied: " + error.what());
    }
  }
  add({Job::kEvict, run});
  {
    MutexLock lock(mutex_);
    for (LostCheckpoint& one : lost_checkpoints(run))
      if (std::none_of(lost.begin(), lost.end(), [&](const LostCheckpoint& other) { return other.save_id == one.save_id; }))
        lost.push_back(std::move(one));
    Run& state = runs_[run];
    state.is_resumed = true;
    state.is_begun = state.is_begun && lost.empty();
    state.known = has_all ? std::optional(has_any) : std::nullopt;
  }
  for (const LostCheckpoint& one : lost) write_log(LogLevel::kWarning, -1, text_of_loss(one.url, one.save_id));
  return lost;
}

}  // namespace cairn
