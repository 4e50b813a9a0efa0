#include <cairn/actors/protocol/rank_machine.hpp>

#include <algorithm>
#include <utility>

#include <cairn/actors/protocol/call_register.hpp>
#include <cairn/actors/protocol/plan_check.hpp>
#include <cairn/base/call_phase.hpp>
#include <cairn/base/save_id.hpp>

namespace cairn::protocol {
namespace {

// Returns whether both failures are the same event on one rank. Their texts may have been cut to
// different lengths.
bool is_same_event(const Failure& a, const Failure& b) {
  return a.rank == b.rank && a.phase == b.phase && a.kind == b.kind && a.code == b.code && a.actor == b.actor &&
         a.trace_position == b.trace_position;
}

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
  call_ = call;
  counter_ = 0;
  save_id_.clear();
  key_order_.clear();
  stopping_ = false;
  abandoned_ = false;
  began_ = false;
  own_failure_.reset();
  outcome_.reset();
  metadata_save_id_.clear();
  local_plan_.reset();
  report_.reset();
  progress_told_ = progress_heard_ = 0;
  delivered_ = false;
  lost_.reset();
  unopened_ = false;
  candidate_ = leader_ = -1;
  turns_ = 0;
  askers_.clear();

  become(State::kJoining);
  tell_early_askers();
  join();
  // The answer to the Join of an agreement is its Outcome.
  wait_for_coordinator(options_.join_deadline + (call.operation == Operation::kAgree ? options_.phase_deadline : Duration(0)));
  if (call.deadline) effects_.emplace_back(StartTimer{Timer::kCall, std::max(*call.deadline, Duration(0))});
}

void RankMachine::join() {
  Join join;
  join.ticket = call_.ticket;
  join.ordinal = call_.ordinal;
  join.operation = call_.operation;
  join.checkpoint_id = call_.checkpoint_id;
  join.options_digest = call_.options_digest;
  join.stateful_keys = call_.stateful_keys;
  join.counter_seen = counter_seen_;
  join.world_size = static_cast<std::uint32_t>(identity_.world_size);
  join.coordinator_rank = call_.coordinator_rank;
  join.text = call_.text;
  if (call_.coordinator_rank != kRegistrar) effects_.emplace_back(Send{kRegistrar, 0, join});
  if (!has_coordinator()) return;
  send(std::move(join));
  if (own_failure_) send(Cancel{call_.ticket, *own_failure_, true});  // cancelled before the Join was delivered
}

void RankMachine::on(const Received& received) {
  down_.erase(received.from);
  if (const auto* ask = std::get_if<AskStanding>(&received.body)) return receive(received.from, received.counter, *ask);
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
  if (lost_ && std::holds_alternative<Begin>(received.body)) return_to_coordinator();          // it got the second Join
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

void RankMachine::receive(const Begin& begin) {
  effects_.emplace_back(StopTimer{Timer::kAnswer});
  save_id_ = make_save_id(identity_.incarnation, identity_.checkpointer, counter_);
  key_order_ = begin.key_order;
  began_ = true;
  become(State::kPreparing);
  time_progress();
  run(Hook::kReset);
}

void RankMachine::receive(const NeedLocalPlan& need) {
  if (state_ != State::kPlanned || !local_plan_ || need.digest != local_digest_) return ignore("NeedLocalPlan of another plan");
  kept_by_coordinator_[call_.coordinator_rank].remove(need.digest);
  send(LocalSavePlan{local_plan_, local_digest_});
  wait_for_coordinator(2 * options_.phase_deadline);
}

void RankMachine::receive(const GlobalSavePlan& message) {
  if (state_ != State::kPlanned || call_.operation != Operation::kSave) return ignore("GlobalSavePlan out of turn");
  if (message.local_plan_kept) kept_by_coordinator_[call_.coordinator_rank].add(local_digest_);
  global_plans_.add(message.digest, message.plan);
  effects_.emplace_back(StopTimer{Timer::kAnswer});
  become(State::kMoving);
  run(Hook::kFinishPlan, std::make_shared<SavePlan>(*message.plan));
}

void RankMachine::receive(const UseCachedPlan& message) {
  if (state_ != State::kPlanned || call_.operation != Operation::kSave) return ignore("UseCachedPlan out of turn");
  auto plan = global_plans_.find(message.digest);
  if (plan) plan = refreshed(std::move(plan), *local_plan_);
  if (!plan) {
    send(NeedGlobalPlan{message.digest});
    wait_for_coordinator(options_.phase_deadline);
    return;
  }
  receive(GlobalSavePlan{std::move(plan), message.digest, message.local_plan_kept});
}

void RankMachine::receive(const GlobalLoadPlan& message) {
  if (state_ != State::kPlanned || call_.operation != Operation::kLoad) return ignore("GlobalLoadPlan out of turn");
  effects_.emplace_back(StopTimer{Timer::kAnswer});
  become(State::kMoving);
  run(Hook::kFinishPlan, std::make_shared<LoadPlan>(*message.plan));
}

void RankMachine::receive(const Outcome& outcome) { end(outcome); }

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
  FailureMap failures;
  failures.emplace(unreadable.failure.rank, unreadable.failure);
  end(Outcome{call_.ticket, make_ending(failures, Committed::kNo, {})});
}

void RankMachine::withdraw() {
  if (has_coordinator()) send(Withdraw{call_.ticket});
}

// Running hooks run to their end; only a writer's I/O can be stopped.
void RankMachine::receive(const StopPhase&) {
  if (state_ != State::kPreparing && state_ != State::kPlanned && state_ != State::kMoving) return ignore("StopPhase out of turn");
  if (outcome_ || std::exchange(stopping_, true)) return ignore("second StopPhase");
  if (!has_hook_running()) return report_stopped();
  stop_writing();
}

void RankMachine::stop_writing() {
  const bool writes =
      state_ == State::kMoving && outstanding_ != 0 && hook_ == Hook::kMoveData && call_.operation == Operation::kSave;
  if (!writes || abandoned_) return;
  abandoned_ = true;
  stop_outstanding_ = ++sequence_;
  effects_.emplace_back(hook_effect(Hook::kAbandon, stop_outstanding_));
}

// --- hooks ---------------------------------------------------------------------------------------

void RankMachine::on(const HookDone& done) {
  const bool is_stop = stop_outstanding_ != 0 && done.sequence == stop_outstanding_;
  if (!is_stop && (outstanding_ == 0 || done.sequence != outstanding_)) return ignore("end of a hook that is not running");
  (is_stop ? stop_outstanding_ : outstanding_) = 0;
  if (state_ == State::kEnding) return finish();
  const auto* failure = is_stop ? nullptr : std::get_if<Failure>(&done.result);
  // A hook that failed because it was told to stop has not failed.
  const bool was_stopped = (abandoned_ || stopping_) && failure && failure->code == ErrorCode::kCancelled;
  if (failure && !was_stopped && !own_failure_ && !outcome_) own_failure_ = *failure;
  if (has_hook_running()) return;
  if (outcome_) return let_go();

  // Stateful hooks may contain collectives, so they must run on every rank or on none. A failed
  // reset does not prevent them.
  if (hook_ == Hook::kReset) return run(Hook::kBegin, key_order_);
  if (own_failure_) return report(*own_failure_);
  if (stopping_) return report_stopped();

  const HookValue& value = std::get<HookValue>(done.result);
  switch (hook_) {
    case Hook::kBegin:
      return run(call_.operation == Operation::kSave ? Hook::kSetUpPlanner : Hook::kReadMetadata);
    case Hook::kReadMetadata:
      metadata_save_id_ = std::get<std::string>(value);
      return run(Hook::kSetUpPlanner);
    case Hook::kSetUpPlanner:
      return run(Hook::kSetUpStorage);
    case Hook::kSetUpStorage:
      return run(Hook::kCreateLocalPlan);
    case Hook::kCreateLocalPlan:
      return run(Hook::kPrepareLocalPlan, value);
    case Hook::kPrepareLocalPlan:
      return send_local_plan(value);
    case Hook::kFinishPlan:
      return run(Hook::kMoveData, value);
    case Hook::kMoveData:
      return send_results(value);
    default:
      throw InternalError("a rank's machine ran a hook that is not its own");
  }
}

void RankMachine::run(Hook hook, HookValue argument) {
  hook_ = hook;
  outstanding_ = ++sequence_;
  RunHook effect = hook_effect(hook, outstanding_);
  effect.argument = std::move(argument);
  effects_.emplace_back(std::move(effect));
}

RunHook RankMachine::hook_effect(Hook hook, std::uint64_t sequence) const {
  RunHook effect;
  effect.hook = hook;
  effect.operation = call_.operation;
  effect.phase = hook == Hook::kBegin ? Phase::kJoin : phase();
  effect.sequence = sequence;
  effect.counter = counter_;
  effect.save_id = save_id_;
  // The successor of a lost coordinator closes the attempt in its place.
  const bool is_end = hook == Hook::kAbandon || hook == Hook::kRelease;
  effect.is_coordinator = identity_.rank == (is_end && leader_ != -1 ? leader_ : call_.coordinator_rank);
  return effect;
}

void RankMachine::send_local_plan(HookValue value) {
  Message message;
  try {
    message = local_plan_message(std::move(value));
  } catch (...) {  // an inconsistent plan
    own_failure_ = capture_failure(identity_.rank, phase(), to_string(actor_of(hook_)), std::current_exception());
    return report(*own_failure_);
  }
  become(State::kPlanned);
  // Covers the slowest rank's local phase, then the coordinator's planning.
  report_end_of_phase(std::move(message), 2 * options_.phase_deadline);
}

// If the coordinator is lost, its successor asks for the report instead.
void RankMachine::report_end_of_phase(Message message, Duration deadline) {
  report_ = std::move(message);
  if (lost_) {
    if (leader_ != -1) tell_standing(leader_);
    return;
  }
  send_report();
  wait_for_coordinator(deadline);
}

void RankMachine::send_report() {
  send(*report_);
  // Stays set: a later failure on this rank does not take the results back.
  if (std::holds_alternative<Written>(*report_)) delivered_ = true;
}

Message RankMachine::local_plan_message(HookValue value) {
  const char* hook = name_of(hook_, call_.operation);
  if (call_.operation == Operation::kLoad) {
    auto plan = std::get<std::shared_ptr<LoadPlan>>(std::move(value));
    check_plan(*plan, hook);
    return LocalLoadPlan{std::move(plan), metadata_save_id_};
  }
  auto plan = std::get<std::shared_ptr<SavePlan>>(std::move(value));
  check_plan(*plan, hook);
  local_digest_ = plan_digest(*plan);
  local_plan_ = std::move(plan);
  if (!kept_by_coordinator_[call_.coordinator_rank].contains(local_digest_)) return LocalSavePlan{local_plan_, local_digest_};
  auto content = content_of(*local_plan_);
  return SameSavePlan{local_digest_, std::move(content.hashes), std::move(content.bytes)};
}

void RankMachine::send_results(HookValue value) {
  become(State::kReported);
  Message message = ReadDone{};
  if (call_.operation == Operation::kSave) message = Written{std::get<std::shared_ptr<WriteResults>>(std::move(value))};
  // Covers the slowest rank's data, then the coordinator's finish.
  report_end_of_phase(std::move(message), 2 * options_.phase_deadline);
}

void RankMachine::report(Failure failure) {
  become(State::kReported);
  report_end_of_phase(PhaseFailed{std::move(failure)}, 2 * options_.phase_deadline);
}

void RankMachine::report_stopped() {
  become(State::kReported);
  report_end_of_phase(PhaseStopped{}, options_.phase_deadline);
}

// Adds the graces: after a failure the coordinator waits that much longer for the other ranks.
void RankMachine::wait_for_coordinator(Duration deadline) {
  effects_.emplace_back(
      StartTimer{Timer::kAnswer, deadline + options_.phase_grace + options_.cancel_grace + options_.outcome_grace});
}

// --- ends ----------------------------------------------------------------------------------------

void RankMachine::on(const TimerFired& fired) {
  if (fired.timer == Timer::kCall) return pass_deadline();
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
  end_alone(failure_of(coordinator, FailureKind::kSilent, ErrorCode::kDeadline, "supervisor", std::move(what)),
            committed_unheard());
}

void RankMachine::tell_coordinator_of_leaving(std::string why) {
  send(Cancel{call_.ticket,
              failure_of(identity_.rank, FailureKind::kCancelled, ErrorCode::kDeadline, "supervisor", std::move(why))});
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
  // Before Begin and after the outcome these actors do no work for the attempt.
  if (state_ == State::kIdle || state_ == State::kJoining || state_ == State::kEnding || outcome_ || own_failure_) return;
  Failure failure = failure_of(identity_.rank, FailureKind::kInternal, ErrorCode::kInternal, "supervisor",
                               "the " + died.actor + " actor of rank " + std::to_string(identity_.rank) + " died: " + died.why);
  own_failure_ = failure;
  if (!has_hook_running()) report(std::move(failure));  // otherwise reported when the running hook has ended
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

void RankMachine::end(const Outcome& outcome, bool alone) {
  if (outcome_) return ignore("second outcome of one call");
  keep(outcome.ending, alone);
  outcome_ = outcome;
  effects_.emplace_back(StopTimer{Timer::kAnswer});
  effects_.emplace_back(StopTimer{Timer::kProgress});
  if (call_.deadline) effects_.emplace_back(StopTimer{Timer::kCall});
  if (!has_hook_running()) let_go();
}

void RankMachine::let_go() {
  if (!began_ || outcome_->ending->failures.empty()) return finish();
  become(State::kEnding);
  const Committed committed = outcome_->ending->committed;
  const bool failed_save = call_.operation == Operation::kSave && committed != Committed::kYes;
  run(failed_save && !abandoned_ ? Hook::kAbandon : Hook::kRelease, failed_save ? HookValue{committed} : HookValue{});
}

void RankMachine::finish() {
  Finished finished;
  finished.failures = ungrouped(outcome_->ending->failures);
  finished.committed = outcome_->ending->committed;
  finished.save_id = outcome_->ending->save_id;
  finished.answer = outcome_->ending->answer;
  // Exceptions are not encoded, so this rank puts its own back into the map.
  const auto own = finished.failures.find(identity_.rank);
  if (own != finished.failures.end()) {
    own->second.exception = outcome_->exception;
    if (own_failure_ && is_same_event(own->second, *own_failure_)) own->second.exception = own_failure_->exception;
  }
  outcome_.reset();
  own_failure_.reset();
  local_plan_.reset();
  report_.reset();
  lost_.reset();
  become(State::kIdle);
  effects_.emplace_back(std::move(finished));
}

// --- helpers -------------------------------------------------------------------------------------

Phase RankMachine::phase() const {
  if (state_ == State::kReported && own_failure_) return own_failure_->phase;
  return phase_of(state_, call_.operation).value_or(*phase_of(State::kMoving, call_.operation));
}

// Returns the phase of the coordinator, as far as this rank can know: a rank that has done its part
// waits for what the coordinator does next.
Phase RankMachine::phase_of_coordinator() const {
  if (state_ == State::kPlanned) return Phase::kGlobalPlan;
  const bool awaits_publication = state_ == State::kReported && !own_failure_ && call_.operation == Operation::kSave;
  return awaits_publication ? Phase::kFinish : phase();
}

void RankMachine::become(State state) {
  state_ = state;
  effects_.emplace_back(StateChanged{state});
}

void RankMachine::send(Message body) { effects_.emplace_back(Send{call_.coordinator_rank, counter_, std::move(body)}); }

}  // namespace cairn::protocol
