#include <cairn/actors/call_progress.hpp>

#include <algorithm>

namespace cairn {

CallProgress::Seen CallProgress::seen() const {
  const MutexLock lock(mutex_);
  Seen seen = seen_;
  seen.own.items_done = std::min<std::uint64_t>(items_done_, seen.own.items);
  seen.own.bytes_done = std::min<std::uint64_t>(bytes_done_, seen.own.bytes);
  return seen;
}

void CallProgress::restart() {
  const MutexLock lock(mutex_);
  seen_ = {};
  items_done_ = bytes_done_ = 0;
}

void CallProgress::start_moving(std::uint64_t items, std::uint64_t bytes) {
  const MutexLock lock(mutex_);
  seen_.own = {items, 0, bytes, 0};
  items_done_ = bytes_done_ = 0;
  seen_.moving_since = system_clock().now();
}

void CallProgress::add_item(std::uint64_t bytes) {
  items_done_.fetch_add(1, std::memory_order_relaxed);
  bytes_done_.fetch_add(bytes, std::memory_order_relaxed);
}

void CallProgress::follow(protocol::RankMachine::State state, const protocol::Effects& effects) {
  using State = protocol::RankMachine::State;
  if (state == State::kPreparing) enter(Step::kPlanning);
  if (state == State::kMoving) enter(Step::kMoving);
  if (state != State::kReported) return;
  for (const auto& effect : effects) {
    const auto* send = std::get_if<protocol::Send>(&effect);
    if (send == nullptr) continue;
    if (std::holds_alternative<protocol::Written>(send->body) || std::holds_alternative<protocol::ReadDone>(send->body))
      enter(Step::kMoved);
  }
}

void CallProgress::enter(Step step) {
  const MutexLock lock(mutex_);
  if (step == seen_.step) return;
  seen_.step = step;
  if (step == Step::kMoving) seen_.moving_since = system_clock().now();
}

void CallProgress::take(const protocol::JobProgress& job) {
  const MutexLock lock(mutex_);
  seen_.job = job;
  seen_.job_at = system_clock().now();
}

}  // namespace cairn
