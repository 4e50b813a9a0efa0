// When a checkpoint manager saves: every so many steps, after a time, and for a signal. Internal.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <cairn/base/clock.hpp>
#include <cairn/base/log.hpp>
#include <cairn/base/mutex.hpp>
#include <cairn/runtime/observation/signal_watch.hpp>
#include <cairn/runtime/runs/manager_options.hpp>
#include <cairn/runtime/worlds/agreement.hpp>

namespace cairn {

// Used by the one call of the manager that runs, on the trainer's threads, except `grace_left`.
class SaveSchedule {
 public:
  // `options` and `agreement` must outlive this object. Throws an error of SignalWatch.
  SaveSchedule(const CheckpointManagerOptions& options, int rank, Agreement& agreement)
      : options_(options), rank_(rank), agreement_(agreement), last_save_(options.clock->now()), last_ask_(last_save_) {
    if (!options.save_on_signal.empty()) signals_.emplace(options.save_on_signal);
  }

  // Collective: returns whether all ranks are to save `step` in the run at `run_url`.
  bool is_due(std::int64_t step, const std::string& run_url) {
    const bool by_step = options_.save_every_steps > 0 && step % options_.save_every_steps == 0;
    if (!is_time_to_ask(step)) return by_step;
    std::vector<std::string> own;
    std::optional<std::chrono::milliseconds> deadline;  // the rest of the grace period
    {
      const MutexLock lock(mutex_);
      note_signal();
      if (pending_) {
        const MonotonicTime asked = options_.clock->now();
        const MonotonicTime since = start_of_grace(asked);
        if (since != pending_->since) grace_end_ = since + options_.grace_period;
        const auto ago = std::chrono::duration_cast<std::chrono::milliseconds>(asked - since);
        own = {std::to_string(pending_->signal), std::to_string(ago.count())};
        if (ago < options_.grace_period) deadline = options_.grace_period - ago;
      }
    }
    MonotonicTime now{};  // set on rank 0 only
    const auto decide = [&](const std::vector<std::string>& brought) {
      // The earliest of several signals counts, because its grace period ends first.
      std::vector<std::string> earliest{"0", "0"};
      for (const std::string& packed : brought) {
        const auto texts = unpack_texts(packed);
        if (texts.size() == 2 && (earliest[0] == "0" || std::stoll(texts[1]) > std::stoll(earliest[1]))) earliest = texts;
      }
      now = options_.clock->now();
      const bool time_is_up = options_.save_every > std::chrono::milliseconds(0) && now - last_save_ >= options_.save_every;
      earliest.emplace_back(time_is_up ? "1" : "0");
      earliest.push_back(std::to_string(calls_until_next_ask(now)));
      return pack_texts(earliest);
    };
    const std::string about = "whether to save step " + std::to_string(step) + " in " + run_url;
    const std::vector<std::string> texts = unpack_texts(agreement_.reach(about, pack_texts(own), decide, deadline));
    last_ask_ = now;
    ask_distance_ = std::stoll(texts.at(3));
    calls_since_ask_ = 0;
    if (texts.at(0) == "0") return by_step || texts.at(2) == "1";
    signal_ = std::stoi(texts[0]);
    const MonotonicTime answered = options_.clock->now();
    // The period began when the signal arrived, not with this agreement.
    due_ = answered + options_.grace_period - std::chrono::milliseconds(std::stoll(texts[1]));
    const MutexLock lock(mutex_);
    answered_ = answered;
    grace_end_ = due_;
    if (pending_ && pending_->signal == signal_) pending_.reset();
    if (signals_) signals_->skip(signal_);
    // A signal that only this rank knows of remains a reason to save.
    if (pending_) grace_end_ = answered + options_.grace_period;
    return true;
  }

  int signal() const { return signal_; }  // the last one that all ranks know of; 0: none
  // Returns the time left for the save for a signal; nothing if there is none to make.
  std::optional<std::chrono::milliseconds> time_left() const { return due_ ? std::optional(time_until(*due_)) : std::nullopt; }

  // A save has begun: the next one is due `save_every` from now.
  void begun() { last_save_ = options_.clock->now(); }
  // The save for the signal, if there was one to make, has ended. Logs `why_not`, unless empty.
  void ended(std::int64_t step = 0, const std::string& why_not = "") {
    if (due_ && rank_ == 0 && !why_not.empty())
      write_log(LogLevel::kWarning, 0,
                "step " + std::to_string(step) + " was not saved within the grace period of " +
                    std::to_string(options_.grace_period.count()) + " ms after signal " + std::to_string(signal_) + ": " + why_not);
    due_.reset();
  }

  // Thread-safe. Returns the rest of the grace period of the last signal that this rank knows of, 0
  // once it has passed. Returns nothing if there is none, or a save has begun after its end.
  std::optional<std::chrono::milliseconds> grace_left() {
    const MutexLock lock(mutex_);
    note_signal();
    if (!grace_end_) return std::nullopt;
    return time_until(*grace_end_);
  }

  // Forgets a grace period that has passed, unless the save for its signal is still to be made.
  void forget_past_grace() {
    if (due_) return;
    const MutexLock lock(mutex_);
    note_signal();
    if (grace_end_ && *grace_end_ <= options_.clock->now()) grace_end_.reset();
  }

 private:
  struct Pending {
    int signal = 0;
    MonotonicTime since;
  };

  std::chrono::milliseconds time_until(MonotonicTime end) const {
    return std::max(std::chrono::milliseconds(0),
                    std::chrono::duration_cast<std::chrono::milliseconds>(end - options_.clock->now()));
  }

  void note_signal() CAIRN_REQUIRES(mutex_) {
    if (pending_ || !signals_) return;  // a second signal waits until the ranks know of the first
    const auto caught = signals_->take();
    if (!caught) return;
    const MonotonicTime now = options_.clock->now();
    pending_ = {caught->signal, now - caught->ago};
    grace_end_ = start_of_grace(now) + options_.grace_period;
  }

  // Returns the start of the pending signal's grace period. It is `now` after a save for a signal
  // before it, which may have taken the whole period.
  MonotonicTime start_of_grace(MonotonicTime now) const CAIRN_REQUIRES(mutex_) {
    return pending_->since > answered_ ? pending_->since : now;
  }
  // Returns whether the ranks communicate in this call of `is_due`. The result is the same on all
  // ranks: each has made the same calls and received the same answers.
  bool is_time_to_ask(std::int64_t step) {
    if (options_.save_every == std::chrono::milliseconds(0) && options_.save_on_signal.empty()) return false;
    ++calls_since_ask_;
    if (options_.ask_every_steps > 0) return step % options_.ask_every_steps == 0;
    return calls_since_ask_ >= ask_distance_;
  }

  // Rank 0: returns the number of calls of `is_due` until the ranks communicate again.
  // Extrapolates the time per call since the ranks last communicated. Later calls may be slower, so
  // the distance at most doubles, and stays short where a signal's grace period may run out
  // meanwhile.
  std::int64_t calls_until_next_ask(MonotonicTime now) const {
    const std::int64_t calls_max = options_.save_on_signal.empty() ? 64 : 8;
    Duration until = options_.ask_every;
    if (options_.save_every > std::chrono::milliseconds(0))
      until = std::min<Duration>(until, options_.save_every - (now - last_save_));
    const auto most = static_cast<double>(std::min(calls_max, 2 * ask_distance_));
    const std::chrono::duration<double> taken = now - last_ask_;
    const double calls = until / std::max(taken / static_cast<double>(calls_since_ask_), std::chrono::duration<double>(1e-9));
    return static_cast<std::int64_t>(std::clamp(calls, 1.0, most));
  }

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
