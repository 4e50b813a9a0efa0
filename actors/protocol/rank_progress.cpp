// A rank reports its progress now and then, and gets the progress of all ranks.
#include <algorithm>

#include <cairn/actors/protocol/rank_machine.hpp>

namespace cairn::protocol {
namespace {

// Limits the coordinator's load to 500 messages per second, for any number of ranks.
constexpr auto kIntervalPerRank = std::chrono::milliseconds(2);

}  // namespace

void RankMachine::time_progress() {
  if (options_.progress_interval.count() <= 0) return;
  const Duration interval = std::max<Duration>(options_.progress_interval, kIntervalPerRank * identity_.world_size);
  effects_.emplace_back(StartTimer{Timer::kProgress, interval});
}

// A rank without a coordinator reports to nobody: a successor only ends the call.
void RankMachine::on(const ProgressDue& due) {
  if (!runs() || state_ == State::kJoining) return ignore_timer();
  if (!lost_) send(Progress{++progress_told_, due.moved});
  time_progress();
}

void RankMachine::receive(const JobProgress& job) {
  if (lost_ || state_ == State::kJoining || outcome_ || job.number <= progress_heard_ || job.number > progress_told_)
    return ignore("JobProgress out of turn");
  progress_heard_ = job.number;
  effects_.emplace_back(ProgressTold{job});
}

}  // namespace cairn::protocol
