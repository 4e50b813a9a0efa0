// When a checkpoint manager saves: every so many steps, after a time, and for a signal. Internal.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include <cairn/base/clock.hpp>
#include <cairn/base/mutex.hpp>
#include <cairn/runtime/observation/signal_watch.hpp>
#include <cairn/runtime/runs/manager_options.hpp>
#include <cairn/runtime/worlds/agreement.hpp>

namespace cairn {

// Used by the one call of the manager that runs, on the trainer's threads, except `grace_left`.
class SaveSchedule {
 public:
  // `options` and `agreement` must outlive this object. Throws an error of SignalWatch.
  SaveSchedule(const CheckpointManagerOptions& options, int rank, Agreement& agreement);

  // Collective: returns whether all ranks are to save `step` in the run at `run_url`.
  bool is_due(std::int64_t step, const std::string& run_url);
  int signal() const { return signal_; }  // the last one that all ranks know of; 0: none
  // Returns the time left for the save for a signal; nothing if there is none to make.
  std::optional<std::chrono::milliseconds> time_left() const;
  // A save has begun: the next one is due `save_every` from now.
  void begun() { last_save_ = options_.clock->now(); }
  // The save for the signal, if there was one to make, has ended. Logs `why_not`, unless empty.
  void ended(std::int64_t step = 0, const std::string& why_not = "");

  // Thread-safe. Returns the rest of the grace period of the last signal that this rank knows of, 0
  // once it has passed. Returns nothing if there is none, or a save has begun after its end.
  std::optional<std::chrono::milliseconds> grace_left();
  // Forgets a grace period that has passed, unless the save for its signal is still to be made.
  void forget_past_grace();

 private:
  struct Pending {
    int signal = 0;
    MonotonicTime since;
  };

  std::chrono::milliseconds time_until(MonotonicTime end) const;
  void note_signal() CAIRN_REQUIRES(mutex_);
  // Returns the start of the pending signal's grace period. It is `now` after a save for a signal
  // before it, which may have taken the whole period.
  MonotonicTime start_of_grace(MonotonicTime now) const CAIRN_REQUIRES(mutex_) {
    return pending_->since > answered_ ? pending_->since : now;
  }
  // Returns whether the ranks communicate in this call of `is_due`. The result is the same on all
  // ranks: each has made the same calls and received the same answers.
  bool is_time_to_ask(std::int64_t step);
  // Rank 0: returns the number of calls of `is_due` until the ranks communicate again.
  std::int64_t calls_until_next_ask(MonotonicTime now) const;

  const CheckpointManagerOptions& options_;
  const int rank_;
  Agreement& agreement_;
  MonotonicTime last_save_;  // with last_ask_, used on rank 0
  MonotonicTime last_ask_;
  std::int64_t ask_distance_ = 1;  // calls of `is_due` from one in which the ranks communicate to the next
  std::int64_t calls_since_ask_ = 0;

  Mutex mutex_;
  std::optional<SignalWatch> signals_ CAIRN_GUARDED_BY(mutex_);
  std::optional<Pending> pending_ CAIRN_GUARDED_BY(mutex_);  // arrived at this rank; the other ranks do not know yet
  std::optional<MonotonicTime> grace_end_ CAIRN_GUARDED_BY(mutex_);
  MonotonicTime answered_ CAIRN_GUARDED_BY(mutex_){};  // when the ranks last agreed on a signal

  int signal_ = 0;
  std::optional<MonotonicTime> due_;  // the time by which the save for the signal must be done
};

}  // namespace cairn
