// The checkpoints of a run, each at a place of its own below it: which there are, in the order of their commits, and how one is taken
// away. Internal; whoever trains uses runtime/checkpoint_manager.hpp.
//
//   run/step_100/      a checkpoint, named by Cairn: "step_<step>", or "step_<step>.<n>" where that was taken
//   run/step_100/.pinned   somebody wants it to stay
//   run/...            everything else is somebody else's, and is never changed
//
// Nothing is kept about a run but the commit records themselves: they are asked each time.
//
// A place that is a symbolic link can be read. Nothing is removed, renamed or created in it.
//
// Taking a checkpoint away, so that a crash at any point leaves it whole, or none and what the next clean-up removes:
//
//  1  list its data files, then its open attempts: one that is open is a save, and the checkpoint stays
//  2  read the record again: it must be the one that is meant
//  3  remove the record, durably                                                     Store::retract
//  4  remove the data files listed, those with Cairn's names, and what fenced attempts left
//  5  remove the place, if nothing else is in it                                     Store::remove_root
//
// A save that begins there after 1 has no file in the list. If it publishes between 2 and 3 its record goes as well, as if it had been
// saved before: it is gone as a whole.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <cairn/storage/format/commit_head.hpp>
#include <cairn/storage/store.hpp>

namespace cairn {

// The `n`th name for checkpoints of a step: step_100, step_100.2, step_100.3. `step` is not negative, `n` at least 1.
std::string checkpoint_name(std::int64_t step, std::uint64_t n = 1);
// Whether `name` is exactly such a name.
bool is_checkpoint_name(const std::string& name);

struct RunCheckpoint {
  ObjectName name;  // of the place, below the run
  CommitHead head;
};

// Not thread-safe. Errors are the stores'.
class RunDirectory {
 public:
  using OpenPlace = std::function<std::shared_ptr<Store>(const ObjectName& name)>;
  explicit RunDirectory(const std::string& url);
  RunDirectory(std::shared_ptr<Store> run, OpenPlace open_place);

  std::string url() const { return run_->url(); }
  std::shared_ptr<Store> open(const ObjectName& name) const { return open_place_(name); }

  struct Listing {
    std::vector<RunCheckpoint> checkpoints;  // those with a record of Cairn's, whatever their name; the last to be committed first
    std::vector<ObjectName> others;          // with a record that is not Cairn's, cannot be read, or is none
  };
  // One level deep. A run that is not there has none. Here and below, kUnavailable is thrown and no fault of a checkpoint.
  Listing list() const;
  // Or what stands in the place of a record, and is none.
  bool has_record(const ObjectName& name) const;
  // Why no new checkpoint can be saved as `name`; "" where nothing is, or only what dead saves and removals have left.
  std::string why_occupied(const ObjectName& name) const;
  // The record of a place that `list` has among the others: why it cannot be used, "" if it can (PyTorch's).
  std::string why_unreadable(const ObjectName& name) const;
  // What is wrong with a checkpoint as far as its record and the lengths of its files tell, "" if nothing is. Reads no data.
  std::string fault_of(const ObjectName& name) const;

  // Returns whether the place is a link to another place. Nothing is changed in such a place.
  bool is_link(const ObjectName& name) const;

  // Throws kNotFound if there is no checkpoint of that name, kPermission for a link. Idempotent.
  void pin(const ObjectName& name) const;
  void unpin(const ObjectName& name) const;
  bool is_pinned(const ObjectName& name) const;

  // Removes a checkpoint, unless it is pinned, being saved to, or replaced by another one: then it stays, and the reason is
  // returned. Throws kPermission for a link.
  std::optional<std::string> remove(const RunCheckpoint& checkpoint) const;

  // Removes what saves and removals that died half-way left in places with Cairn's names but without a record; not in those of `busy`.
  // `end_attempts`: saves that seem to run there are ended (fenced) and count as dead; otherwise their places stay as they are.
  // Returns what could not be removed, and why.
  std::vector<std::pair<ObjectName, std::string>> remove_remains(const std::set<ObjectName>& busy, bool end_attempts) const;

 private:
  std::shared_ptr<Store> open_to_change(const ObjectName& name) const;
  void remove_remains_of(const ObjectName& name, bool end_attempts) const;

  std::shared_ptr<Store> run_;
  OpenPlace open_place_;
};

}  // namespace cairn
