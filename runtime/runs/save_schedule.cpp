#include <cairn/runtime/runs/save_schedule.hpp>

#include <algorithm>
#include <vector>

#include <cairn/base/log.hpp>

namespace cairn {

using std::chrono::milliseconds;

SaveSchedule::SaveSchedule(const CheckpointManagerOptions& options, int rank, Agreement& agreement)
    : options_(options), rank_(rank), agreement_(agreement), last_save_(options.clock->now()), last_ask_(last_save_) {
  if (!options.save_on_signal.empty()) signals_.emplace(options.save_on_signal);
}

milliseconds SaveSchedule::time_until(MonotonicTime end) const {
  return std::max(milliseconds(0), std::chrono::duration_cast<milliseconds>(end - options_.clock->now()));
}

std::optional<milliseconds> SaveSchedule::time_left() const { return due_ ? std::optional(time_until(*due_)) : std::nullopt; }

bool SaveSchedule::is_time_to_ask(std::int64_t step) {
  if (options_.save_every == milliseconds(0) && options_.save_on_signal.empty()) return false;
  ++calls_since_ask_;
  if (options_.ask_every_steps > 0) return step % options_.ask_every_steps == 0;
  return calls_since_ask_ >= ask_distance_;
}

// Extrapolates the time per call since the ranks last communicated. Later calls may be slower, so
// the distance at most doubles, and stays short where a signal's grace period may run out
// meanwhile.
std::int64_t SaveSchedule::calls_until_next_ask(MonotonicTime now) const {
  const std::int64_t calls_max = options_.save_on_signal.empty() ? 64 : 8;
  Duration until = options_.ask_every;
  if (options_.save_every > milliseconds(0)) until = std::min<Duration>(until, options_.save_every - (now - last_save_));
  const auto most = static_cast<double>(std::min(calls_max, 2 * ask_distance_));
  const std::chrono::duration<double> taken = now - last_ask_;
  const double calls = until / std::max(taken / static_cast<double>(calls_since_ask_), std::chrono::duration<double>(1e-9));
  return static_cast<std::int64_t>(std::clamp(calls, 1.0, most));
}

bool SaveSchedule::is_due(std::int64_t step, const std::string& run_url) {
  const bool by_step = options_.save_every_steps > 0 && step % options_.save_every_steps == 0;
  if (!is_time_to_ask(step)) return by_step;
  std::vector<std::string> own;
  std::optional<milliseconds> deadline;  // the rest of the grace period
  {
    const MutexLock lock(mutex_);
    note_signal();
    if (pending_) {
      const MonotonicTime asked = options_.clock->now();
      const MonotonicTime since = start_of_grace(asked);
      if (since != pending_->since) grace_end_ = since + options_.grace_period;
      const auto ago = std::chrono::duration_cast<milliseconds>(asked - since);
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
    const bool time_is_up = options_.save_every > milliseconds(0) && now - last_save_ >= options_.save_every;
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
  due_ = answered + options_.grace_period - milliseconds(std::stoll(texts[1]));
  const MutexLock lock(mutex_);
  answered_ = answered;
  grace_end_ = due_;
  if (pending_ && pending_->signal == signal_) pending_.reset();
  if (signals_) signals_->skip(signal_);
  // A signal that only this rank knows of remains a reason to save.
  if (pending_) grace_end_ = answered + options_.grace_period;
  return true;
}

void SaveSchedule::ended(std::int64_t step, const std::string& why_not) {
  if (due_ && rank_ == 0 && !why_not.empty())
    write_log(LogLevel::kWarning, 0,
              "step " + std::to_string(step) + " was not saved within the grace period of " +
                  std::to_string(options_.grace_period.count()) + " ms after signal " + std::to_string(signal_) + ": " + why_not);
  due_.reset();
}

void SaveSchedule::note_signal() {
  if (pending_ || !signals_) return;  // a second signal waits until the ranks know of the first
  const auto caught = signals_->take();
  if (!caught) return;
  const MonotonicTime now = options_.clock->now();
  pending_ = {caught->signal, now - caught->ago};
  grace_end_ = start_of_grace(now) + options_.grace_period;
}

std::optional<milliseconds> SaveSchedule::grace_left() {
  const MutexLock lock(mutex_);
  note_signal();
  if (!grace_end_) return std::nullopt;
  return time_until(*grace_end_);
}

void SaveSchedule::forget_past_grace() {
  if (due_) return;
  const MutexLock lock(mutex_);
  note_signal();
  if (grace_end_ && *grace_end_ <= options_.clock->now()) grace_end_.reset();
}

}  // namespace cairn
