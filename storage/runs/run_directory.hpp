// Finds and removes the checkpoints of a run. Each checkpoint has a place of its own one level
// below the run. Internal: training code uses runtime/runs/checkpoint_manager.hpp.
//
//   run/step_100/          a checkpoint named by Cairn: "step_<step>", or "step_<step>.<n>" if that
//                          name was taken
//   run/step_100/.pinned   keeps the checkpoint from being removed
//   run/...                anything else is not Cairn's and is never changed
//
// Each call reads the commit records again, except that `fault_of` and `remove` begin with the
// objects that the last `list` has seen at the place, if the store has shown them.
//
// A place that is a symbolic link can be read. Nothing is removed, renamed or created in it.
//
// A data file is dead, and may be removed, only if a removal's mark or a fenced attempt names its
// save id, or a record that was read names it as retired. Data files without any of these, such as
// those of a run that was copied without its records, are kept.
//
// Removal follows these steps. After a crash at any point the checkpoint is either whole, or gone
// except for leftovers that the next clean-up removes, because the mark names them.
//
//  1  list its objects, then its open attempts; if another save's attempt is open, stop
//  2  read the record again; if it is not the expected one, stop. A store that lists a run with all
//     objects replaces the record in 4 only if it has not changed since, and may take 1 and 2 from
//     that list
//  3  create the mark ".removed-<save id>", durably. It contains the names of files that the record
//     lists or retires and whose names do not contain this save id. Without space for it, go on
//  4  remove the record, durably                                              Store::retract: 3, 4
//  5  remove the files of the save and of fenced attempts, and those that the mark names; then
//     clear fenced attempts, unless other safetensors files remain
//  6  remove the mark, then the place, if nothing else is in it               Store::remove_root
//
// A removal stopped by a `MayChange` function after step 3 leaves the same state as a crash.
// Clean-up of a place without a record does steps 5 and 6 for the marks and attempts there.
//
// The files of a save that begins at this place after step 1 are not in the list. If such a save
// publishes between steps 2 and 4, its record is removed too. Its files stay.
//
// A finding is a note in a place: a restore has found the checkpoint damaged, in two reads. A
// finding makes retention keep another checkpoint as well. It is never a reason to remove anything.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <cairn/base/mutex.hpp>
#include <cairn/storage/format/commit_head.hpp>
#include <cairn/storage/runs/checkpoint_info.hpp>
#include <cairn/storage/store.hpp>

namespace cairn {

struct RunCheckpoint {
  ObjectName name;  // name of the place, relative to the run
  CommitHead head;
};

// Not thread-safe. Throws the errors of the store.
class RunDirectory {
 public:
  using OpenPlace = std::function<std::shared_ptr<Store>(const ObjectName& name)>;
  explicit RunDirectory(const std::string& url);
  RunDirectory(std::shared_ptr<Store> run, OpenPlace open_place);

  std::string url() const { return run_->url(); }
  std::shared_ptr<Store> open(const ObjectName& name) const { return open_place_(name); }

  struct Listing {
    // Checkpoints with a readable record of Cairn's, under any name; the last committed comes
    // first.
    std::vector<RunCheckpoint> checkpoints;
    // Places whose record is not Cairn's, cannot be read, may not be read, or is not a regular
    // object, and those with PyTorch's records of one rank each.
    std::vector<ObjectName> others;
    std::vector<ObjectName> without_record;  // all other places
    // The place that the store names as the latest checkpoint, if its record is gone: another
    // program has removed it. "" otherwise.
    ObjectName lost_latest;
    bool is_checkpoint = false;  // the run has a record itself, or parts that ranks saved for themselves
    std::exception_ptr refusal;  // kPermission of a place among `others` with a name that Cairn gives
  };
  // Lists the run, one level deep. Returns an empty listing if the run does not exist. Here and
  // below, errors of the store itself (kUnavailable, kPermission) are thrown and never reported as
  // a fault of a checkpoint.
  Listing list() const;
  // Returns whether a listed checkpoint has been removed or replaced since.
  bool is_gone(const RunCheckpoint& checkpoint) const;
  // Returns the places among `without_record` that have complete data files which no attempt, mark
  // or record explains. Looks twice. Counts Cairn's files and, in a place with a name that Cairn
  // gives, also PyTorch's files, safetensors files and parts of ranks.
  std::vector<ObjectName> unrecorded(const std::vector<ObjectName>& without_record) const;
  // Returns whether the run has a record itself.
  bool is_checkpoint() const { return run_->is_taken(kCommitRecordName); }
  // Returns whether `name` has a record, records of ranks, or something else that occupies the
  // record's name.
  bool has_record(const ObjectName& name) const;
  // Returns why no new checkpoint can be saved as `name`. Returns "" if the place is absent, or is
  // a directory without a record, without parts of ranks and without unrecorded data, such as one
  // with leftovers of failed saves and removals.
  std::string why_occupied(const ObjectName& name) const;
  // Returns why a record listed in `Listing::others` cannot be used; "" if it can, such as
  // PyTorch's.
  std::string why_unreadable(const ObjectName& name) const;
  // Returns what is wrong with a checkpoint, judging by its record and the lengths of its files; ""
  // if nothing is wrong. Reads no data. With `save_id`, returns the finding (below) about that
  // save, if there is one.
  std::string fault_of(const ObjectName& name, const std::string& save_id = "") const;

  // Reads the data files of a checkpoint, those of `first_ranks` first and at most `bytes_max`,
  // until one differs from what the record says. Returns that file's name, length and CRC-32 as
  // text, or "" if none differs.
  std::string find_damage(const RunCheckpoint& checkpoint, const std::set<int>& first_ranks, std::uint64_t bytes_max) const;
  // Stores such a finding in the run, with the save id, or removes it if `finding` is "". Throws
  // kPermission for a link. `finding_of` returns the stored finding, or "" if there is none.
  void note_damage(const RunCheckpoint& checkpoint, const std::string& finding) const;
  std::string finding_of(const RunCheckpoint& checkpoint) const;

  // Returns whether the place is a symbolic link. Nothing is changed in such a place.
  bool is_link(const ObjectName& name) const;

  // Pins or unpins a checkpoint. Both are idempotent and throw kPermission for a link. `pin` throws
  // kNotFound if there is no checkpoint of that name.
  void pin(const ObjectName& name) const;
  void unpin(const ObjectName& name) const;
  bool is_pinned(const ObjectName& name) const;

  // Called with a place's name before the place is changed, and before each of its files is
  // removed. If it returns false, nothing more is removed.
  using MayChange = std::function<bool(const ObjectName& name)>;

  // Removes a checkpoint, unless it is pinned, is being saved to, was replaced by another one, or
  // `may_change` forbids it. In those cases returns the reason. Throws kPermission for a link.
  std::optional<std::string> remove(const RunCheckpoint& checkpoint, const MayChange& may_change = may_change_all) const;

  // Removes leftovers of failed saves and removals, as marks and attempts name them, from places
  // that have Cairn's names but no record. Skips the places in `busy`. If `end_attempts` is true,
  // open attempts there are fenced and treated as dead; otherwise places with open attempts are
  // left alone. With `listing`, takes the places without a record from there. Returns the places
  // that could not be cleaned, and why.
  std::vector<std::pair<ObjectName, std::string>> remove_remains(const std::set<ObjectName>& busy, bool end_attempts,
                                                                 const MayChange& may_change = may_change_all,
                                                                 const Listing* listing = nullptr) const;

 private:
  static bool may_change_all(const ObjectName&) { return true; }
  std::shared_ptr<Store> open_to_change(const ObjectName& name) const;
  void remove_remains_of(const ObjectName& name, bool end_attempts, const MayChange& may_change) const;
  ObjectName lost_latest(const Listing& listing, std::optional<LatestPlace> latest) const;
  std::string fault_in(const ObjectName& name, const std::string& save_id, const PlaceContents* seen) const;
  std::set<ObjectName> unexplained(const ObjectName& name) const;
  bool has_unrecorded(const ObjectName& name) const;

  std::shared_ptr<Store> run_;
  OpenPlace open_place_;
  // By the last `list`, for `fault_of` and `remove`. Copies share it.
  struct Seen {
    Mutex mutex;
    std::map<ObjectName, PlaceContents> places CAIRN_GUARDED_BY(mutex);
  };
  std::optional<PlaceContents> seen_at(const ObjectName& name) const;
  std::shared_ptr<Seen> seen_ = std::make_shared<Seen>();
};

// --- the description of a checkpoint in other forms: the manager's API, commit records, texts ---

// Returns the user metadata for the commit record: `common` overridden by the annotations' entries,
// and each metric as "metric.<name>". Throws kInvalidArgument for other keys with the prefix
// "metric.".
std::map<std::string, std::string> user_metadata_of(const std::map<std::string, std::string>& common,
                                                    const Annotations& annotations);

CheckpointInfo info_of(const RunDirectory& run, const RunCheckpoint& checkpoint);

// Returns a text for another rank, and the checkpoint in it. Throws kCorrupt for another text.
std::string checkpoint_text(const RunCheckpoint& checkpoint);
RunCheckpoint checkpoint_in(const std::string& text);

}  // namespace cairn
