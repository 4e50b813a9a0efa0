// Removes the checkpoints that a manager's retention no longer keeps, and the remains of dead
// saves. Runs on a thread of its own: a store may take long to remove files, and neither the
// trainer nor the other ranks should wait for that. Internal.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <cairn/storage/runs/retention_policy.hpp>
#include <cairn/storage/runs/run_directory.hpp>
#include <cairn/storage/store_observer.hpp>

namespace cairn {

// Thread-safe. One clean-up runs at a time. If several are requested meanwhile, only the last
// request runs next.
//
// When the grace period of a signal begins, a pending clean-up is dropped, and the running clean-up
// removes no further file. The next `start` cleans up the rest.
class RunCleanup {
 public:
  // Returns the time left of a signal's grace period; 0 if the period has passed; nothing if no
  // signal has come. Called on any thread, with the lock of RunCleanup held.
  using GraceLeft = std::function<std::optional<std::chrono::milliseconds>()>;

  RunCleanup(const RunDirectory& run, RetentionPolicy policy, int rank, GraceLeft grace_left = nullptr);
  // Waits for the running and the pending clean-up. If the store does not return by the end of a
  // grace period, detaches the thread and logs that.
  ~RunCleanup();

  // Starts a clean-up and returns. `busy` has the places that saves may write to now. A later save
  // must call the function that `waiter` returns before it writes. `damaged` has the save ids of
  // checkpoints that a load found damaged. With `saved`, the checkpoint that was just saved, does
  // not look at the run if the last clean-up left nothing to do and `saved` gives no reason to
  // remove another. If no thread can be started, cleans up before it returns.
  void start(std::set<ObjectName> busy, std::set<std::string> damaged, std::optional<RunCheckpoint> saved = {});
  // Takes the checkpoints of a run that has nothing else, the latest first, instead of a first look
  // at the run. Returns false if there is something to remove: then `start` must look itself. Only
  // while no clean-up runs.
  bool take(const std::vector<RunCheckpoint>& all);
  // Waits until no clean-up runs or is pending, for at most `deadline` and the grace period.
  void wait(std::optional<std::chrono::milliseconds> deadline = std::nullopt);
  // Returns a function that each save calls with its checkpoint's id. The function may outlive this
  // object. It waits until no clean-up runs or is pending. In a grace period it stops the clean-up
  // and waits only while the clean-up still changes this checkpoint's place; if that does not end
  // within the period, it throws kDeadline. It reports a long wait to `observer` as the operation
  // `remove_old` of the place that was removed last.
  std::function<void(const std::string& checkpoint_id, StoreObserver* observer)> waiter() const;

  // Returns whether the last clean-up could not read the run, or was stopped.
  bool has_failed() const;
  // Returns what the last finished clean-up could not remove.
  std::vector<RetentionFault> faults() const;

 private:
  struct Work {
    std::set<ObjectName> busy;
    std::set<std::string> damaged;
    std::optional<RunCheckpoint> saved;
  };
  struct Worker;
  const std::shared_ptr<Worker> worker_;  // shared with the thread
  std::thread thread_;
};

}  // namespace cairn
