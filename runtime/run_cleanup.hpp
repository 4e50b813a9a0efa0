// Removes what a manager's retention lets go of, and what dead saves have left, on a thread of its own: a store takes its time over files,
// and neither the trainer nor the other ranks are to wait for it.
#pragma once

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

// Thread-safe. One clean-up runs at a time; of those that wait for their turn, the last one counts.
class RunCleanup {
 public:
  RunCleanup(const RunDirectory& run, RetentionPolicy policy, int rank) : run_(run), policy_(std::move(policy)), rank_(rank) {}
  // Waits for what runs or waits for its turn.
  ~RunCleanup();
  RunCleanup(const RunCleanup&) = delete;
  RunCleanup& operator=(const RunCleanup&) = delete;

  // Begins a clean-up, and returns. `busy`: places that saves may write to now; one that takes a place later must `wait` before it writes.
  // `damaged`: save ids of what a load has found to be so. Where no thread can be had, it is done when this returns.
  void start(std::set<ObjectName> busy, std::set<std::string> damaged);
  // Until nothing runs or waits, for `deadline` at most.
  void wait(std::optional<std::chrono::milliseconds> deadline = std::nullopt);

  // Returns whether the last clean-up that has ended could not look at the run.
  bool has_failed() const;
  // What the last one that has ended could not remove.
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
  std::vector<RetentionFault> faults_;
  bool failed_ = false;
  bool ended_attempts_ = false;  // once only: later on a save that seems to be under way may be another manager's, which would never end
};

}  // namespace cairn
