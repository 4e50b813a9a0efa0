// The progress of one call, on this rank and on all ranks. Hooks and the supervisor update it; any
// thread may read it. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include <cairn/actors/protocol/rank_machine.hpp>
#include <cairn/base/clock.hpp>
#include <cairn/base/mutex.hpp>
#include <cairn/messages/control.hpp>

namespace cairn {

class CallProgress {
 public:
  // The current work of this rank. Steps come in this order; any may be skipped.
  enum class Step : std::uint8_t {
    kJoining,
    kPlanning,
    kMoving,  // writing or reading
    kMoved,   // finished without a failure; waits for the other ranks and the coordinator
  };

  struct Seen {
    Step step = Step::kJoining;
    protocol::Moved own;
    std::optional<MonotonicTime> moving_since;
    std::optional<protocol::JobProgress> job;  // as last reported by the coordinator
    MonotonicTime job_at{};                    // when `job` was received
  };
  Seen seen() const;

  // Resets everything. Called when a load starts again.
  void restart();
  // Hooks call `start_moving` once with the totals, then `add_item` for each item that was written
  // or read. Anything beyond the totals is not counted.
  void start_moving(std::uint64_t items, std::uint64_t bytes);
  void add_item(std::uint64_t bytes);

  // Called by the supervisor.
  void follow(protocol::RankMachine::State state, const protocol::Effects& effects);  // after each step of the machine
  void take(const protocol::JobProgress& job);

 private:
  void enter(Step step);

  mutable Mutex mutex_;
  Seen seen_ CAIRN_GUARDED_BY(mutex_);  // but for what is done
  // Without the lock, because a rank may have a hundred thousand items, and many threads.
  std::atomic<std::uint64_t> items_done_{0}, bytes_done_{0};
};

}  // namespace cairn
