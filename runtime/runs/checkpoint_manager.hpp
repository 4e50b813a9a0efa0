// Manages the checkpoints of a run: when to save, under which names, which ones to keep, and from
// which one to resume.
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
// A run is a directory, or a prefix in another kind of store, that contains one checkpoint per
// entry. The manager names its checkpoints "step_<step>". If that place has a checkpoint or cannot
// take one, the manager uses "step_<step>.2" and so on: it never saves over a checkpoint. The
// latest checkpoint is the one with the highest commit sequence in its record, not the highest step
// or the newest time. If a job goes back to step 50 and then saves step 60, step 60 is the latest,
// even if the run also has a step 100 from before.
//
// A run can resume from a checkpoint that PyTorch saved as "step_<step>". Such a checkpoint has no
// commit sequence. It counts as the latest if its step is larger than the step of each of Cairn's
// checkpoints in the run. But if Cairn's latest checkpoint was saved without a step, none of
// PyTorch's counts as the latest. If several qualify, the one with the largest step is the latest.
// A checkpoint of PyTorch's that does not qualify is used only if none of Cairn's is sound. A
// checkpoint with a record for each rank (use_collectives=False) cannot be used; if it may be the
// latest, `passed_over` lists it. To resume from an earlier step, move later checkpoints of
// PyTorch's out of the run.
//
// The run keeps no data other than the checkpoints, the marks of pinned ones, the marks of removals
// that have begun, and notes of damage. `checkpoints` reads the commit records each time it is
// called, so there is no index that could be out of date. After a crash at any point no manual
// clean-up is needed: the next save removes the remains of unfinished saves and removals.
//
// A place may have complete data files, but neither a commit record nor a mark or attempt that
// explains it, as in a run that was copied without hidden files. Nothing removes or overwrites such
// data. `restore_latest` does not silently ignore the place: see DataWithoutRecord.
//
// Rank 0 removes old checkpoints on the manager's own thread. Removal starts after each `save` that
// succeeds, and before a save that follows a failed save or removal. It also starts before the
// manager's first save, so that the remains of a dead job do not keep the next job from saving.
// After asynchronous saves, the next save, `wait_for_saves` or the destructor starts removal. Every
// save waits for removal before it writes: `save` blocks the trainer for that time, `async_save`
// does not. A disk needs room for keep_last + 1 checkpoints, plus those that are kept for other
// reasons. With WhileInFlight::kReplace it needs room for one more: an earlier save may complete
// after the removal, and its checkpoint then stays until the next removal.
//
// A signal in `save_on_signal` starts a grace period. Rank 0 then stops the running removal before
// the next file, and starts no other removal until the first save after the grace period, not even
// in the destructor. Nothing waits for removal longer than the grace period. A save in the grace
// period does not wait for removal at all, unless the store is still removing an old checkpoint of
// the same name. Rank 0 notices a signal of its own at once, even while a save waits, and a signal
// of another rank in `should_save`.
//
// The manager removes a checkpoint only if `retention` no longer keeps it, it has Cairn's own
// record, and its name is one that the manager gives. It removes the record before the data, so
// that a crash cannot leave a damaged checkpoint that looks complete. It never removes:
//   - the latest sound checkpoint, as far as known from its record, the lengths of its files and
//     damage that a `restore_latest` found in two reads;
//   - in a tiered run, the latest checkpoint that the far tier has;
//   - a pinned checkpoint, or one with a save in progress;
//   - a checkpoint whose record cannot be read;
//   - a symbolic link;
//   - other files and checkpoints in the run, including PyTorch's.
//
// Only one manager at a time may save to a run. Before a manager's first save writes, it fences
// other managers' saves that appear to be in progress there, as if their jobs were dead; those
// saves fail with kFenced. That loses no existing checkpoint. Any number of managers may read.
//
// All ranks of the world must make the collective calls in the same order, as with a Checkpointer.
// Ranks that are in one process make them on threads of their own. Unless stated otherwise, an
// error on one rank is thrown on all ranks, as CheckpointException. Each rank may make one such
// call at a time: a second throws kPrecondition. `restore_latest` first waits for a running
// removal, and starts none. Rank 0 reads the run, decides for all ranks, and tells them over the
// world's connections. Only rank 0 needs to list the run. After World::rejoin, make a new manager
// for the new world.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <cairn/runtime/checkpoints/async_handle.hpp>
#include <cairn/runtime/checkpoints/options.hpp>
#include <cairn/runtime/runs/manager_options.hpp>
#include <cairn/runtime/worlds/world.hpp>
#include <cairn/state/state_dict.hpp>
#include <cairn/storage/runs/checkpoint_info.hpp>
#include <cairn/storage/runs/retention_policy.hpp>

namespace cairn {

class CheckpointManager {
 public:
  // `run` is a path or URL whose absolute form is UTF-8. The constructor changes nothing there,
  // except that rank 0 calls `resume_copies` for a tiered run (storage/tiers.hpp). It starts to
  // catch signals: see `signal`. Throws kInvalidArgument if `run` is not UTF-8 or an
  // option is invalid, kAlreadyExists if a checkpointer of this world has the name in `options`.
  CheckpointManager(World world, const std::string& run, CheckpointManagerOptions options = {});
  // Waits for asynchronous saves as ~Checkpointer does. Then waits for removal, but not beyond the
  // grace period of a signal. In a tiered run, then waits for this process's copies, as
  // `wait_for_copies` without a deadline does, but not beyond a grace period. Then stops catching
  // signals.
  ~CheckpointManager();

  // --- saving: collective ---

  // Saves as Checkpointer::save does, and returns the checkpoint's id. Steps may go back and
  // repeat. Fails with kInvalidArgument for a negative step. After a success, rank 0 starts to
  // remove what `retention` no longer keeps, except in the grace period of a signal. If a removal
  // fails, the save still succeeds: the failure is logged, and `retention_faults` returns it.
  std::string save(std::int64_t step, const StateDict& state, const Annotations& annotations = {});
  // Saves in the background. The end of the save starts no removal. The next `save` or `async_save`
  // (before it writes), `wait_for_saves` or the destructor starts it.
  AsyncSaveResponse async_save(std::int64_t step, const StateDict& state, const Annotations& annotations = {},
                               const AsyncSaveOptions& async_options = {});
  // Waits, returns and throws as Checkpointer::wait_for_saves does. Not collective. Rank 0 then
  // also waits for removal, for at most another `deadline`, and not beyond the grace period of a
  // signal. This does not affect the result.
  bool wait_for_saves(std::optional<std::chrono::milliseconds> deadline = std::nullopt);

  // Returns whether to save now, the same on all ranks. Call it after each step. Returns true if a
  // step or time in the options has been reached or a signal has arrived. Returns false for the
  // step that was last saved (synchronously) or restored. The ranks communicate only if
  // `save_every` or `save_on_signal` is set, and then only in some of the calls (see `ask_every`),
  // with two messages per rank.
  bool should_save(std::int64_t step);
  // Returns the last signal that `should_save` learned of, whichever rank got it, the same on all
  // ranks; 0 if none. The trainer decides whether to stop. The signal handlers only record the
  // signal. A previous handler is restored when the last manager with this signal is destroyed.
  int signal() const;

  // --- resuming ---

  // Loads the latest usable checkpoint, the same on all ranks, into `state`. Collective. Returns
  // nothing if the run has neither a checkpoint of Cairn's nor one of PyTorch's named step_<n>;
  // rank 0 then logs PyTorch's checkpoints with other names. Rank 0 skips, and logs, checkpoints
  // whose record or files are not sound. If a checkpoint turns out to be damaged during the load,
  // all ranks skip it. Rank 0 then reads up to 16 GiB of the checkpoint's files again, and notes
  // the damage in the run if this read finds damage as well. If another process removes the
  // checkpoint during the load, all ranks take the one that is then the latest.
  //
  // Throws kCorrupt, with a reason for each checkpoint, if the run has checkpoints but none is
  // usable: starting from scratch would lose them. Also throws kCorrupt if places have data without
  // a record, unless `data_without_record` says otherwise. `state` is then unspecified. Throws
  // errors of the store, such as kUnavailable and kPermission, because they say nothing about a
  // checkpoint. Throws kPrecondition if the run is itself a checkpoint. Throws kPermission if the
  // options say when to save and rank 0 has no permission to write to the run's directory.
  //
  // With `allow_partial_load`, entries that the loaded checkpoint lacks may hold data of a
  // checkpoint that was skipped; `reader.verify_first` makes that unlikely. `options` must leave
  // `world`, `no_dist`, `coordinator_rank` and `storage_reader` unset.
  std::optional<ValidCheckpoint> restore_latest(StateDict& state, const LoadOptions& options = {});
  // Loads the checkpoint of `step`, the same on all ranks, into `state`. Collective. If several
  // have this step, takes the one that was committed last. PyTorch's named step_<n> have step n.
  // Never takes another one: throws kNotFound, naming the steps that exist, if there is none, and
  // the failure of the load, such as kCorrupt, after which `state` is unspecified. `options` as for
  // `restore_latest`.
  ValidCheckpoint restore(std::int64_t step, StateDict& state, const LoadOptions& options = {});

  // --- reading the run: on any rank, not collective; may throw the store's errors ---

  // Returns all of Cairn's checkpoints in the run, whatever their names, the latest first.
  // Checkpoints of PyTorch's are not listed.
  std::vector<CheckpointInfo> checkpoints() const;
  // Returns the first of `checkpoints`, or nothing if there is none.
  std::optional<CheckpointInfo> latest() const;
  // Returns the checkpoint with the best value of the metric that `retention` names, whether
  // `keep_best` is set or not; the later one of equal values. Returns nothing if no checkpoint has
  // a finite value. Throws kPrecondition if `retention` names no metric.
  std::optional<CheckpointInfo> best() const;
  // Returns the latest checkpoint from which `restore_latest` could resume and whose bytes are all
  // intact. Reads all bytes of each candidate. Returns nothing if the run has no checkpoint; throws
  // kCorrupt if it has some but none is intact.
  std::optional<ValidCheckpoint> latest_valid() const;

  // Pins a checkpoint, or unpins it. A pinned checkpoint stays until this or another process unpins
  // it. `pin` throws kNotFound if no checkpoint has that name. Both throw kPermission for a
  // symbolic link.
  void pin(const std::string& name) const;
  void unpin(const std::string& name) const;
  bool is_pinned(const std::string& name) const;

  // Returns the checkpoints that the last finished removal could not remove, and why. Each later
  // removal tries again. Returns nothing on ranks other than 0.
  std::vector<RetentionFault> retention_faults() const;

  const World& world() const;

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace cairn
