// A call that its own caller cancels, explicitly or by a deadline.
#include <algorithm>

#include <cairn/actors/protocol/rank_machine.hpp>

namespace cairn::protocol {

void RankMachine::on(const CancelRequested& request) {
  if (request.ticket != call_.ticket) return ignore("cancellation of another call");
  cancel_call(ErrorCode::kCancelled, "the caller of rank " + std::to_string(identity_.rank) + " cancelled the " + describe_call() +
                                         (request.why.empty() ? "" : ": " + request.why));
}

void RankMachine::pass_deadline(const char* running_hook) {
  if (!runs()) return ignore_timer();
  const std::string self = "rank " + std::to_string(identity_.rank);
  std::string awaited = "its coordinator, rank " + std::to_string(call_.coordinator_rank);
  if (outstanding_ != 0)
    awaited = std::string("its own ") + (running_hook != nullptr ? running_hook : to_string(phase()));
  else if (lost_ && leader_ != -1)
    awaited =
        "rank " + std::to_string(leader_) + ", which succeeds its coordinator, rank " + std::to_string(call_.coordinator_rank);
  cancel_call(ErrorCode::kDeadline, "the deadline of " + in_seconds(std::max(*call_.deadline, Duration(0))) +
                                        " that the caller of " + self + " had set for the " + describe_call() + " passed while " +
                                        self + " waited for " + awaited);
}

// Stops what can be stopped, and reports as after a failure of this rank. The coordinator is told
// at once, since hooks of other ranks may run long. It sends all ranks the same outcome, which is a
// success if the cancellation came too late.
void RankMachine::cancel_call(ErrorCode code, const std::string& why) {
  if (!runs()) return ignore("cancellation of a call that has ended");
  if (own_failure_ || stopping_) return ignore("cancellation of a call that has failed");
  Failure failure = failure_of(identity_.rank, FailureKind::kCancelled, code, "trainer", why);
  if (!has_coordinator()) return end_alone(std::move(failure), Committed::kNo);
  if (!lost_) send(Cancel{call_.ticket, failure, true});
  if (state_ == State::kReported) return;  // its part is done: only the coordinator knows about the other ranks
  own_failure_ = failure;
  stop_tasks();
  if (state_ == State::kPlanned)
    report(std::move(failure));
  else if (lost_ && leader_ != -1)
    send_status(leader_);
}

}  // namespace cairn::protocol
