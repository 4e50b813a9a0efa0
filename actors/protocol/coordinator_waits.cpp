// While the coordinator waits for ranks, it probes absent ranks and logs warnings.

#include <cairn/actors/protocol/coordinator_machine.hpp>
#include <cairn/base/rank_text.hpp>

namespace cairn::protocol {
namespace {

// Ranks rarely call at the same moment. Ranks that have not joined after this long are probed.
constexpr Duration kAskAfter = std::chrono::seconds(1);

}  // namespace

void CoordinatorMachine::wait_for_ranks(Duration deadline) {
  if (identity_.world_size > 1) {
    notices_ = WaitNotices();
    wait_limit_ = deadline;
    effects_.emplace_back(StartTimer{Timer::kWaiting, notices_.next()});
  }
  start_timer(deadline);
}

void CoordinatorMachine::warn_of_waiting() {
  const Duration waited = notices_.next();
  notices_.is_due(waited);
  effects_.emplace_back(StartTimer{Timer::kWaiting, notices_.next() - waited});
  // Do not warn of a phase that no rank has ended: the phase is just long.
  const std::vector<int> missing = missing_ranks();
  if (missing.empty() || (collects() && missing.size() == joins_.size())) return;
  effects_.emplace_back(Warn{"waiting for " + name_ranks(missing) + " to " +
                             (collects() ? std::string("end the ") + to_string(phase()) + " phase of" : std::string("join")) +
                             " the " + describe_call(joins_.begin()->second) + " by checkpointer \"" + identity_.checkpointer +
                             "\": " + in_whole_seconds(waited, wait_limit_)});
}

// Returns the ranks that the running phase waits for.
std::vector<int> CoordinatorMachine::missing_ranks() const {
  std::vector<int> missing;
  const bool joining = state_ == State::kJoining;
  for (int rank = 0; rank < identity_.world_size; ++rank)
    if (joining ? joins_.count(rank) == 0 : answered_.count(rank) == 0) missing.push_back(rank);
  return missing;
}

// Returns a text that names them.
std::string CoordinatorMachine::awaited() const {
  if (decides()) return "its own " + own_hook();
  return name_ranks(missing_ranks()) +
         (state_ == State::kJoining ? " to join it" : std::string(" to end the ") + to_string(phase()) + " phase");
}

// Links are opened by the first message. Without a link nothing reports that a rank has ended, so
// absent ranks are sent a message.
void CoordinatorMachine::ask_later() {
  if (joins_.size() < static_cast<std::size_t>(identity_.world_size)) effects_.emplace_back(StartTimer{Timer::kProbe, kAskAfter});
}

void CoordinatorMachine::ask_absent_ranks() {
  if (joins_.count(identity_.rank) == 0) return;
  for (int rank = 0; rank < identity_.world_size; ++rank)
    if (joins_.count(rank) == 0 && down_.count(rank) == 0) request_status(rank);
}

}  // namespace cairn::protocol
