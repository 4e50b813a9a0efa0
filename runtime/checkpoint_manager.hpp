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
// Removal runs on a thread of the manager's own, on rank 0. It begins after each save in the foreground; before an asynchronous one; and
// before the first save of a manager and one that follows a failed one, so that what a dead job could not remove any more does not keep
// the next one from saving. A save waits for it before it writes: the trainer waits for that in `save`, and not in `async_save`. So a disk
// needs room for keep_last + 1 checkpoints, beside those that are kept for other reasons; for one more with WhileInFlight::kReplace, where
// an earlier save may land after that.
//
// What is removed: checkpoints that have Cairn's own record and a name that the manager gives, when `retention` lets go of them. First
// goes the record, then the data, so that a crash leaves none that only looks whole. Never removed: the latest one that is sound as far
// as its record, the lengths of its files, and what this manager's `restore_latest` has found tell, pinned ones, one with a save under
// way, one that is a link to a place elsewhere, and all else in the run: files and checkpoints of others, PyTorch's, and those whose
// record cannot be read.
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
  // From the signal's arrival until the save must be done: after that it ends on all ranks with kDeadline, as do saves in the background
  // that it has to wait for. Whoever sends the signal should wait a little longer. CAIRN_GRACE_SECONDS in the environment, which
  // cairn-launch sets, says how long it does: nine tenths of that count where they are less.
  std::chrono::milliseconds grace_period{std::chrono::seconds(30)};
  // How often the ranks talk in `should_save`, where there is a `save_every` or a signal to talk about; between two such calls it sends
  // nothing. Rank 0 measures the time from call to call and chooses the next that all talk in: about `ask_every` later, no later than
  // `save_every` is up, at most twice as many calls later as the last time, and at most 64. So a signal is heard of within about `ask_every`,
  // which is part of its grace period; where calls become slower all at once, within 64 of them. 0: in each call.
  std::chrono::milliseconds ask_every{std::chrono::seconds(1)};
  // In its place, if not 0: the ranks talk at the steps that this divides.
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
  // `run`: a path or URL; in UTF-8, once made absolute. Makes and changes nothing there. Throws kInvalidArgument for another, or for
  // options that cannot be meant, kAlreadyExists for a name that a checkpointer of this world has. Signals are caught from here on: see `signal`.
  CheckpointManager(World world, const std::string& run, CheckpointManagerOptions options = {});
  // Waits for asynchronous saves as ~Checkpointer does, and for removal, and lets go of signals.
  ~CheckpointManager();
  CheckpointManager(const CheckpointManager&) = delete;
  CheckpointManager& operator=(const CheckpointManager&) = delete;

  // --- saving: collective ---------------------------------------------------------------------------------------------------

  // Saves as Checkpointer::save does, and returns the checkpoint's id. Steps may go back and repeat; kInvalidArgument if negative.
  // Then rank 0 begins to remove what `retention` lets go of; what fails in that fails no save, but is logged, and in `retention_faults`.
  std::string save(std::int64_t step, const StateDict& state, const Annotations& annotations = {});
  // The same in the background. What `retention` lets go of is removed once it is published: before the next save writes, within
  // `wait_for_saves`, or by the destructor.
  AsyncSaveResponse async_save(std::int64_t step, const StateDict& state, const Annotations& annotations = {},
                               const AsyncSaveOptions& async_options = {});
  // As Checkpointer::wait_for_saves, for which it throws; not collective. On rank 0 it then waits for removal, within the same time.
  bool wait_for_saves(std::optional<std::chrono::milliseconds> deadline = std::nullopt);

  // Whether to save now, the same on all ranks: a step or time of the options has come, or a signal has, unless this very step was saved
  // (not in the background) or restored last. To be asked after each step. Ranks talk only where there is a `save_every` or a signal to talk
  // about, and then in one call of many (`ask_every`): two messages a rank.
  bool should_save(std::int64_t step);
  // The signal that `should_save` has learnt of last, on whichever rank it came, the same on all ranks; 0: none. Whether to stop then
  // is the trainer's affair. The handlers do nothing but take note; those from before are put back with the last manager of the process.
  int signal() const;

  // --- going on -------------------------------------------------------------------------------------------------------------

  // Collective: loads the latest checkpoint that can be used, the same on all ranks, into `state`; nothing if the run has none. Rank 0
  // passes over those whose record or files are not sound, and logs what it passed over; one that turns out to be damaged while it is loaded
  // is passed over by all. kPrecondition if the run is itself a checkpoint; kPermission if the options say when to save, and the run is a
  // directory in which this process may not.
  // If none is left of those that there are, kCorrupt says why for each, and `state` is unspecified: starting anew would lose them.
  // With `allow_partial_load`, what the one that was loaded lacks may hold parts of one that was passed over; `reader.verify_first` makes
  // that unlikely. `options`: not `world`, `no_dist`, `coordinator_rank` nor `storage_reader`.
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

  // On rank 0: what the last removal that has ended could not remove, and why. It is tried again after each save.
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
