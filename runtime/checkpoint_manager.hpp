// Keeping the checkpoints of a run: when to save, under which name, which ones stay, and from which one to go on.
//
//   cairn::CheckpointManagerOptions options;
//   options.save_every_steps = 100;
//   options.retention.keep_last = 3;
//   options.save_on_signal = {SIGTERM};
//   cairn::CheckpointManager manager(world, "run", options);          // on all ranks
//
//   if (auto restored = manager.restore_latest(state)) step = state["step"].to_int();
//   while (step < steps && !manager.signal()) {
//     train(++step);
//     if (manager.should_save(step)) manager.save(step, state);
//   }
//
// A run is a directory, or a place of any other store, with one checkpoint at each place below it. The manager calls its own
// "step_<step>", and "step_<step>.2" and so on where that name is taken, by whatever it is: no checkpoint is ever saved over. Which one is the latest is said
// by the commit sequence of their records, never by step or time: after going back to step 50, an abandoned step 100 is not the latest.
//
// Nothing is kept about a run but the checkpoints themselves, and the mark of those that are pinned. The index, `checkpoints`, is derived
// from their commit records each time it is asked for, so nothing can disagree with them, and after a crash at any point nobody has to
// clean up. What a save or removal that died half-way has left goes with the next save.
//
// Rank 0 removes old checkpoints on a thread of the manager's own. Removal starts after each synchronous save; before a save that
// follows a failed save or asynchronous saves that have ended; in `wait_for_saves` and the destructor; and before the manager's
// first save, so that the remains of a dead job do not keep the next job from saving. Every save waits for removal before it
// writes: `save` blocks the trainer for that time, `async_save` does not. A disk needs room for keep_last + 1 checkpoints, beside
// those that are kept for other reasons. With WhileInFlight::kReplace it needs room for one more, because an earlier save may end
// after removal.
//
// The manager removes only checkpoints that have Cairn's own record and a name that the manager gives, once `retention` no longer
// keeps them. It removes the record first, then the data, so that a crash leaves no checkpoint that only looks whole. It never
// removes the latest checkpoint that is sound, as far as its record, the lengths of its files and this manager's `restore_latest`
// tell; a pinned checkpoint; one with a save in progress; a symbolic link; other files and checkpoints in the run, PyTorch's
// among them; nor a checkpoint whose record cannot be read.
//
// One manager at a time saves to a run: its first save ends, as dead, saves that others seem to have under way there (they fail with
// kFenced), before it writes. No checkpoint that exists is lost by that. Any number may read.
//
// Collective calls are made by all ranks of the world in the same order, each on its own thread, like those of a Checkpointer; what is
// thrown on one rank is thrown on all, as CheckpointException, unless said otherwise. One call at a time on each rank: a second one throws
// kPrecondition. So nothing is removed while this manager loads it. Ranks agree through the world itself; rank 0 looks and decides for
// all, and no other rank needs to see the run's listing. After World::rejoin, make a new manager of the new world.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <cairn/base/clock.hpp>
#include <cairn/runtime/checkpointer.hpp>

namespace cairn {

enum class Better : std::uint8_t { kLower = 1, kHigher };

// Which of the manager's checkpoints stay; one stays that any of these wants, or that is pinned.
struct RetentionPolicy {
  std::optional<std::uint32_t>
      keep_last;                // the last ones to be committed; at least 1. Absent: all stay, whatever else is said here
  std::int64_t keep_every = 0;  // one, the last to be committed, of each step that this divides; 0: none for that
  std::uint32_t keep_best = 0;  // those with the best `metric`; of equal ones the later
  std::string metric;           // checkpoints without it, or where it is no finite number, are not among the best
  Better better = Better::kLower;
};

// The same on all ranks, unless said otherwise.
struct CheckpointManagerOptions {
  std::string name = "manager";  // of its checkpointers: several managers in one world have different ones
  RetentionPolicy retention;

  // When `should_save` says yes; 0: not for that.
  std::int64_t save_every_steps = 0;
  std::chrono::milliseconds save_every{0};  // since the last save began, or the manager was made, by rank 0's clock
  // Signals upon which to save, such as SIGTERM or SIGUSR1, which schedulers send before they end a job; on whichever rank they come.
  std::vector<int> save_on_signal;
  // The time from a signal's arrival until the save must be done. After that the save fails on all ranks with kDeadline, and
  // asynchronous saves that it has to wait for are cancelled. The sender of the signal should wait a little longer before it ends
  // the job. cairn-launch says how long it waits in CAIRN_GRACE_SECONDS: the grace period is at most nine tenths of that.
  std::chrono::milliseconds grace_period{std::chrono::seconds(30)};
  // How often the ranks communicate in `should_save`, if `save_every` or `save_on_signal` is set. Other calls of it send nothing.
  // Rank 0 measures the time per call and chooses the next call in which the ranks communicate: about `ask_every` later, no later
  // than the end of `save_every`, at most twice as many calls later as the last time, and at most 64 calls later, or 8 if
  // `save_on_signal` is set. So all ranks learn of a signal within about `ask_every`, which is part of the grace period; if calls
  // suddenly become slower, within 8 calls. 0: in every call.
  std::chrono::milliseconds ask_every{std::chrono::seconds(1)};
  // Replaces `ask_every` if it is not 0: the ranks communicate at every step that is a multiple of it.
  std::int64_t ask_every_steps = 0;

  std::map<std::string, std::string> user_metadata;  // of every checkpoint, such as a git revision; rank 0's count
  SavePlannerOptions planning;
  CheckpointWriterOptions writer;        // but for `overwrite` and `run_url`, which are the manager's affair
  const Clock* clock = &system_clock();  // outlives the manager
};

// What a checkpoint says of itself beside its state. Rank 0's count.
struct Annotations {
  std::map<std::string, double> metrics;  // any values: NaN is kept as NaN
  std::map<std::string, std::string> user_metadata;
};

struct CheckpointInfo {
  std::string name;           // below the run
  std::string checkpoint_id;  // for Checkpointer::load
  std::string save_id;
  std::uint64_t sequence = 0;  // of its commit: later ones have larger ones
  std::optional<std::int64_t> step;
  Annotations annotations;
};

// A checkpoint that was later than the one chosen, and why it could not be used.
struct PassedOver {
  std::string name;
  std::string why;
};

struct ValidCheckpoint {
  CheckpointInfo checkpoint;
  std::vector<PassedOver> passed_over;  // first those whose place in the order is not known
};

class CheckpointManager {
 public:
  // `run`: a path or URL whose absolute form is UTF-8. Creates and changes nothing there. Throws kInvalidArgument if it is not
  // UTF-8 or an option is invalid, kAlreadyExists if a checkpointer of this world has the name. Catches signals from now on: see
  // `signal`.
  CheckpointManager(World world, const std::string& run, CheckpointManagerOptions options = {});
  // Waits for asynchronous saves as ~Checkpointer does, and for removal. Then stops catching signals.
  ~CheckpointManager();
  CheckpointManager(const CheckpointManager&) = delete;
  CheckpointManager& operator=(const CheckpointManager&) = delete;

  // --- saving: collective ---------------------------------------------------------------------------------------------------

  // Saves as Checkpointer::save does, and returns the checkpoint's id. Steps may go back and repeat; kInvalidArgument for a
  // negative one. Then rank 0 starts to remove what `retention` no longer keeps. A removal that fails does not fail the save: it
  // is logged, and `retention_faults` returns it.
  std::string save(std::int64_t step, const StateDict& state, const Annotations& annotations = {});
  // Saves in the background. After publication, what `retention` no longer keeps is removed by the next of these: a save, before
  // it writes; `wait_for_saves`; the destructor.
  AsyncSaveResponse async_save(std::int64_t step, const StateDict& state, const Annotations& annotations = {},
                               const AsyncSaveOptions& async_options = {});
  // Waits, returns and throws as Checkpointer::wait_for_saves does. Not collective. Rank 0 then also waits for removal, for at
  // most `deadline` again; the result does not depend on that.
  bool wait_for_saves(std::optional<std::chrono::milliseconds> deadline = std::nullopt);

  // Returns whether to save now, the same on all ranks. True if a step or time of the options has come, or a signal, unless this
  // very step was the last to be saved (synchronously) or restored. Call it after each step. The ranks communicate only if
  // `save_every` or `save_on_signal` is set, and then only in some of the calls (see `ask_every`), with two messages per rank.
  bool should_save(std::int64_t step);
  // The signal that `should_save` has learnt of last, on whichever rank it came, the same on all ranks; 0: none. Whether to stop then
  // is the trainer's affair. The handlers do nothing but take note; those from before are put back with the last manager of the process.
  int signal() const;

  // --- going on -------------------------------------------------------------------------------------------------------------

  // Collective. Loads the latest usable checkpoint, the same on all ranks, into `state`. Returns nothing if the run has no
  // checkpoint. Rank 0 passes over checkpoints whose record or files are not sound, and logs them. If a checkpoint turns out to
  // be damaged during the load, all ranks pass over it. Throws kCorrupt, with a reason for each checkpoint, if the run has
  // checkpoints but none is usable: starting anew would lose them, and `state` is then unspecified. Throws kPrecondition if the
  // run is itself a checkpoint, kPermission if the options say when to save and the run is a directory that rank 0 may not write
  // to. With `allow_partial_load`, entries that the loaded checkpoint lacks may hold parts of one that was passed over;
  // `reader.verify_first` makes that unlikely. `options` must leave `world`, `no_dist`, `coordinator_rank` and `storage_reader`
  // unset.
  std::optional<ValidCheckpoint> restore_latest(StateDict& state, const LoadOptions& options = {});

  // --- looking: on any rank, not collective; the store's errors -----------------------------------------------------------------

  // All of Cairn's checkpoints in the run, whatever their names, the latest first.
  std::vector<CheckpointInfo> checkpoints() const;
  std::optional<CheckpointInfo> latest() const;
  // The latest of which every byte is what was written: reads all of them.
  std::optional<ValidCheckpoint> latest_valid() const;

  // A pinned checkpoint stays until it is unpinned, by this or any other process. kNotFound if there is none of that name.
  void pin(const std::string& name) const;
  void unpin(const std::string& name) const;
  bool is_pinned(const std::string& name) const;

  // On rank 0: what the last finished removal could not remove, and why. Each later removal tries again.
  struct RetentionFault {
    std::string name;  // of the checkpoint; "" if the run could not be looked at
    std::string why;
  };
  std::vector<RetentionFault> retention_faults() const;

  const World& world() const;

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace cairn
