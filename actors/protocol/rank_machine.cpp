#include <cairn/actors/protocol/rank_machine.hpp>

#include <algorithm>
#include <utility>

#include <cairn/actors/protocol/call_register.hpp>
#include <cairn/base/call_phase.hpp>

namespace cairn::protocol {
namespace {

// Limits the coordinator's load by progress reports to 500 messages per second, for any number of
// ranks.
constexpr auto kIntervalPerRank = std::chrono::milliseconds(2);

}  // namespace

RankMachine::RankMachine(Identity identity, const RuntimeOptions& options)
    : identity_(std::move(identity)), options_(options), counter_seen_(identity_.counter_floor) {}

Effects RankMachine::step(const Event& event) {
  effects_.clear();
  std::visit([this](const auto& it) { on(it); }, event);
  return std::exchange(effects_, {});
}

// --- the call and its messages -------------------------------------------------------------------

void RankMachine::on(const CallStarted& call) {
  check_invariant(state_ == State::kIdle, "a call started while another call of the same checkpointer was running");
  static_cast<CallOnRank&>(*this) = CallOnRank();
  call_ = call;

  become(State::kJoining);
  tell_early_askers();
  join();
  // The answer to the Join of an agreement is its Outcome.
  wait_for_coordinator(options_.join_deadline + (call.operation == Operation::kAgree ? options_.phase_deadline : Duration(0)));
  if (call.deadline) effects_.emplace_back(StartTimer{Timer::kCall, std::max(*call.deadline, Duration(0))});
}

void RankMachine::on(const Received& received) {
  down_.erase(received.from);
  if (const auto* ask = std::get_if<StatusRequest>(&received.body)) return receive(received.from, received.counter, *ask);
  if (state_ == State::kIdle || state_ == State::kEnding) return ignore("message after the end of the call");
  if (const auto* other = std::get_if<FollowOther>(&received.body)) return receive(received.from, *other);
  if (!is_heard(received)) return ignore("message of a rank that this call does not listen to");
  if (received.from != call_.coordinator_rank && !lost_) {
    withdraw();  // the registrar has found that the ranks disagree on the coordinator
    return end(std::get<Outcome>(received.body));
  }
  if (const auto* down = std::get_if<CoordinatorDown>(&received.body)) {
    if (down->ticket != 0 && down->ticket != call_.ticket) return ignore("CoordinatorDown of another call");
    if (lost_) return turn_to_next();  // the coordinator gave up as well
  }
  if (lost_ && std::holds_alternative<Begin>(received.body)) return_to_coordinator();  // it got the second Join
  // Begin, Outcome and CoordinatorDown name the call by its ticket. Unreadable, and CoordinatorDown
  // without a ticket, concern every call. All other messages belong to the attempt.
  const bool names_call = std::holds_alternative<Begin>(received.body) || std::holds_alternative<Outcome>(received.body) ||
                          std::holds_alternative<CoordinatorDown>(received.body) ||
                          std::holds_alternative<Unreadable>(received.body);
  if (!names_call && received.counter != counter_) return ignore("message of another attempt");
  if (const auto* begin = std::get_if<Begin>(&received.body)) {
    if (state_ != State::kJoining || begin->ticket != call_.ticket || received.counter == 0) return ignore("Begin of another call");
    counter_ = received.counter;
  }
  if (const auto* outcome = std::get_if<Outcome>(&received.body)) {
    if (outcome->ticket != call_.ticket || (!lost_ && counter_ != 0 && received.counter != counter_))
      return ignore("Outcome of another call");
    if (received.counter != 0) counter_ = received.counter;
  }
  counter_seen_ = std::max(counter_seen_, counter_);
  std::visit([this](const auto& message) { receive(message); }, received.body);
}

void RankMachine::receive(const NeedLocalPlan& need) {
  if (state_ != State::kPlanned || !local_plan_ || need.digest != local_digest_) return ignore("NeedLocalPlan of another plan");
  kept_by_coordinator_.erase(call_.coordinator_rank);
  send(LocalSavePlan{local_plan_, local_digest_});
  wait_for_coordinator(2 * options_.phase_deadline);
}

void RankMachine::receive(const CoordinatorDown& down) {
  // The call has not begun, so join again: a new coordinator actor may have replaced the dead one.
  // If none has, the answer is CoordinatorDown again.
  if (down.ticket == 0 && state_ == State::kJoining && ++turns_ <= kTurnsMax) return join();
  lose_coordinator(down.failure);
}

// The sender cannot tell which call the message belonged to. If it belonged to an attempt, the
// coordinator reports it in the attempt's outcome.
void RankMachine::receive(const Unreadable& unreadable) {
  if (state_ != State::kJoining) return ignore("a message of an attempt was unreadable: its outcome follows");
  withdraw();
  end(Outcome{call_.ticket, make_ending({{unreadable.failure.rank, unreadable.failure}}, Committed::kNo, {})});
}

void RankMachine::withdraw() {
  if (has_coordinator()) send(Withdraw{call_.ticket});
}

// --- tasks ---------------------------------------------------------------------------------------

// Returns the sequence number.
std::uint64_t RankMachine::run(Task task) {
  RunTask effect;
  effect.operation = call_.operation;
  effect.phase = phase();
  effect.sequence = ++sequence_;
  effect.counter = counter_;
  effect.save_id = save_id_;
  // The successor of a lost coordinator closes the attempt in its place.
  const bool is_end = std::holds_alternative<Abandon>(task) || std::holds_alternative<Release>(task);
  effect.is_coordinator = identity_.rank == (is_end && leader_ != -1 ? leader_ : call_.coordinator_rank);
  effect.task = std::move(task);
  effects_.emplace_back(std::move(effect));
  return sequence_;
}

void RankMachine::on(const TaskEnded& task) {
  const bool is_abandon = stop_outstanding_ != 0 && task.sequence == stop_outstanding_;
  if (!is_abandon && (outstanding_ == 0 || task.sequence != outstanding_)) return ignore("end of a task that is not running");
  (is_abandon ? stop_outstanding_ : outstanding_) = 0;
  if (state_ == State::kEnding) return become_idle();
  const auto* failure = is_abandon ? nullptr : std::get_if<Failure>(&task.result);
  // A task that failed because it was told to stop has not failed.
  const bool was_stopped = (abandoned_ || stopping_) && failure && failure->code == ErrorCode::kCancelled;
  if (failure && !was_stopped && !own_failure_ && !outcome_) own_failure_ = *failure;
  if (has_task_running()) return;
  if (outcome_) return release_call();
  if (own_failure_) return report(*own_failure_);
  if (stopping_) return report_stopped();
  std::visit([this](const auto& result) { ended(result); }, task.result);
}

// --- the end of a phase --------------------------------------------------------------------------

// Covers the slowest rank's part of the phase, then the coordinator's own task. If the coordinator
// is lost, its successor asks for the report instead.
void RankMachine::report_end_of_phase(State next, Message message) {
  reported_phase_ = phase();
  become(next);
  const bool stopped = std::holds_alternative<PhaseStopped>(message);
  report_ = std::move(message);
  if (lost_) {
    if (leader_ != -1) send_status(leader_);
    return;
  }
  send_report();
  wait_for_coordinator(stopped ? options_.phase_deadline : 2 * options_.phase_deadline);
}

void RankMachine::send_report() {
  send(*report_);
  // Stays set: a later failure on this rank does not take the results back.
  if (std::holds_alternative<Written>(*report_)) delivered_ = true;
}

// Adds the graces: after a failure the coordinator waits that much longer for the other ranks.
void RankMachine::wait_for_coordinator(Duration deadline) {
  effects_.emplace_back(
      StartTimer{Timer::kAnswer, deadline + options_.phase_grace + options_.cancel_grace + options_.outcome_grace});
}

// --- ends ----------------------------------------------------------------------------------------

void RankMachine::on(const TimerFired& fired) {
  if (fired.timer == Timer::kCall) return pass_deadline(fired.running_hook);
  if (fired.timer != Timer::kAnswer || outcome_ || !(lost_ ? runs() : waits())) return ignore_timer();
  if (lost_) {
    if (leader_ != -1) {
      askers_.erase(leader_);
      tried_.insert(leader_);
    }
    return turn_to_next();
  }
  if (!has_coordinator()) return end_alone(no_coordinator(), Committed::kNo);
  const int coordinator = call_.coordinator_rank;
  std::string what = "rank " + std::to_string(coordinator) + ", which coordinates the " + describe_call() +
                     ", sent nothing before the deadline; see whether its process is alive and whether it made the same call";
  tell_coordinator_of_leaving("waited for the coordinator, rank " + std::to_string(coordinator) +
                              ", until the deadline and then gave up");
  end_alone(failure_of(coordinator, FailureKind::kSilent, ErrorCode::kDeadline, "supervisor", what),
            committed_unheard());
}

void RankMachine::tell_coordinator_of_leaving(const std::string& why) {
  send(Cancel{call_.ticket,
              failure_of(identity_.rank, FailureKind::kCancelled, ErrorCode::kDeadline, "supervisor", why)});
}

// The call names a coordinator that is not a rank. Used when the registrar, which would have told
// all ranks, cannot be reached.
Failure RankMachine::no_coordinator() const {
  return failure_of(identity_.rank, FailureKind::kRaised, ErrorCode::kInvalidArgument, "supervisor",
                    "rank " + std::to_string(identity_.rank) + " called " + describe_call() + " with coordinator_rank " +
                        std::to_string(call_.coordinator_rank) + ", which is not a rank of a world of " +
                        std::to_string(identity_.world_size));
}

void RankMachine::on(const ActorDied& died) {
  if (!runs()) return;
  Failure failure = protocol::failure_of(died, identity_.rank, phase());
  if (died.actor == Actor::kLinks) return lose_links(std::move(failure));
  // Before Begin these actors do no work for the attempt.
  if (state_ == State::kJoining || own_failure_) return;
  own_failure_ = failure;
  if (!has_task_running()) return report(std::move(failure));
  stop_tasks();  // reported when the running task has ended
}

void RankMachine::on(const Cancelled& cancelled) {
  if (state_ == State::kIdle || state_ == State::kEnding || outcome_) return;
  Failure failure = failure_of(identity_.rank, FailureKind::kCancelled, ErrorCode::kCancelled, "supervisor", cancelled.why);
  if (has_coordinator()) send(Cancel{call_.ticket, failure});
  // Without this rank's results nobody can publish.
  end_alone(std::move(failure), delivered_ ? committed_unheard() : Committed::kNo);
}

// Returns `save of "step_100" by checkpointer "main"`, for texts.
std::string RankMachine::describe_call() const {
  return protocol::describe_call(call_.operation, call_.checkpoint_id) + " by checkpointer \"" + identity_.checkpointer + "\"";
}

// Ends the call on this rank alone, because it cannot learn what the others decide.
void RankMachine::end_alone(Failure failure, Committed committed) {
  FailureMap failures;
  failures.emplace(failure.rank, std::move(failure));
  if (own_failure_) failures.emplace(identity_.rank, *own_failure_);
  end(Outcome{call_.ticket, make_ending(failures, committed, save_id_)}, true);
}

Failure RankMachine::failure_of(int rank, FailureKind kind, ErrorCode code, const char* actor, const std::string& what) const {
  return make_failure(rank, rank == identity_.rank ? phase() : phase_of_coordinator(), kind, code, actor, what);
}

// Returns what a rank knows about the checkpoint if it has not received the coordinator's outcome.
Committed RankMachine::committed_unheard() const {
  return call_.operation == Operation::kSave && began_ ? Committed::kUnknown : Committed::kNo;
}

// --- progress ------------------------------------------------------------------------------------

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

// --- cancellation by the caller, explicitly or by a deadline -------------------------------------

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

// --- helpers -------------------------------------------------------------------------------------

Phase RankMachine::phase() const {
  if (state_ == State::kReported) return own_failure_ ? own_failure_->phase : reported_phase_;
  return phase_of(state_, call_.operation).value_or(*phase_of(State::kMoving, call_.operation));
}

// Returns the phase of the coordinator, as far as this rank can know: a rank that has done its part
// waits for what the coordinator does next.
Phase RankMachine::phase_of_coordinator() const {
  if (state_ == State::kPlanned) return Phase::kGlobalPlan;
  const bool awaits_publication = state_ == State::kReported && !own_failure_ && reported_phase_ == Phase::kWrite;
  return awaits_publication ? Phase::kFinish : phase();
}

void RankMachine::become(State state) {
  state_ = state;
  effects_.emplace_back(StateChanged{state});
}

void RankMachine::send(Message body) { effects_.emplace_back(Send{call_.coordinator_rank, counter_, std::move(body)}); }

}  // namespace cairn::protocol
