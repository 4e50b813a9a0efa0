// Removes the checkpoints that a manager's retention no longer keeps, and the remains of dead
// saves. Runs on a thread of its own: a store may take long to remove files, and neither the
// trainer nor the other ranks should wait for that. Internal.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <cairn/runtime/checkpoint_manager.hpp>
#include <cairn/storage/run_directory.hpp>

namespace cairn {

// Thread-safe. One clean-up runs at a time. If several are requested meanwhile, only the last
// request runs next.
class RunCleanup {
 public:
  RunCleanup(const RunDirectory& run, RetentionPolicy policy, int rank) : run_(run), policy_(std::move(policy)), rank_(rank) {}
  // Waits for the running and the pending clean-up.
  ~RunCleanup();
  RunCleanup(const RunCleanup&) = delete;
  RunCleanup& operator=(const RunCleanup&) = delete;

  // Starts a clean-up and returns. `busy`: places that saves may write to now; a save that takes a
  // place later must `wait` before it writes. `damaged`: save ids of checkpoints that a load found
  // damaged. If no thread can be started, cleans up before it returns.
  void start(std::set<ObjectName> busy, std::set<std::string> damaged);
  // Drops the pending clean-up, and lets the running one end before the next checkpoint that it
  // would remove. Returns at once. For a save that has no time to wait for room; the next `start`
  // cleans up what is left.
  void cut_short();
  // Waits until no clean-up runs or is pending, for at most `deadline`.
  void wait(std::optional<std::chrono::milliseconds> deadline = std::nullopt);

  // Returns whether the last finished clean-up could not read the run.
  bool has_failed() const;
  // Returns what the last finished clean-up could not remove.
  std::vector<CheckpointManager::RetentionFault> faults() const;

 private:
  using RetentionFault = CheckpointManager::RetentionFault;
  struct Work {
    std::set<ObjectName> busy;
    std::set<std::string> damaged;
  };
  void serve() noexcept;
  void clean_up(const Work& work) noexcept;
  void remove_unkept(const Work& work, std::vector<RetentionFault>& faults) const;
  void log_new(const std::vector<RetentionFault>& faults) const;

  const RunDirectory run_;
  const RetentionPolicy policy_;
  const int rank_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::thread thread_;
  bool runs_ = false;
  std::optional<Work> next_;
  std::atomic<bool> cut_short_{false};
  std::vector<RetentionFault> faults_;
  bool failed_ = false;
  bool ended_attempts_ = false;  // ended once only: two managers that repeated it would fence each other's saves for ever
};

}  // namespace cairn
