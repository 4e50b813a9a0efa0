// A failure, from the task that fails to the failure map on all ranks: what each rank and the
// coordinator do, in this order. docs/protocol.md has the failures of ranks that do not answer:
// lost ranks (coordinator_ends.cpp), lost coordinators (rank_orphan.cpp, succession.cpp).
#include <utility>

#include <cairn/actors/protocol/coordinator_machine.hpp>
#include <cairn/actors/protocol/rank_machine.hpp>
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

// --- 1. rank: a task has failed (rank_machine.cpp) -----------------------------------------------

void RankMachine::report(Failure failure) { report_end_of_phase(State::kReported, PhaseFailed{std::move(failure)}); }

// --- 2. coordinator: note it, and let the other ranks end their phase ----------------------------

void CoordinatorMachine::receive(int from, const PhaseFailed& message) {
  Failure failure = message.failure;
  failure.rank = from;
  fail(from, std::move(failure));
}

void CoordinatorMachine::fail(int rank, Failure failure) {
  const bool delivered = (state_ == State::kMoving && answered_.count(rank) != 0 && outcome_.failures.count(rank) == 0) ||
                         state_ == State::kFinishing || state_ == State::kSettling;
  if (delivered) return ignore("failure of a rank that has done its part");
  outcome_.failures.emplace(rank, std::move(failure));  // the first one counts
  answered_.insert(rank);
  end_phase_if_complete();  // in save.cpp, with the outcome
  hurry();                  // does nothing if the phase has ended
}

// Shortens the time for the other ranks to end their phase after a failure.
void CoordinatorMachine::hurry() {
  if (!collects() || outcome_.failures.empty() || std::exchange(hurried_, true)) return;
  start_timer(options_.phase_grace);
}

// --- 3. coordinator: `phase_grace` is over (coordinator_ends.cpp); the other ranks are to stop ---

void CoordinatorMachine::tell_to_stop() {
  hurried_ = stopping_ = true;
  start_timer(options_.cancel_grace);
  // The task that makes the global plan runs in the call of this machine's own rank.
  if (state_ == State::kGlobalPlan) return send(identity_.rank, StopPhase{});
  if (!collects()) return;
  for (const auto& [rank, join] : joins_)
    if (answered_.count(rank) == 0 && outcome_.failures.count(rank) == 0) send(rank, StopPhase{});
}

// --- 4. other ranks: stop, and say so ------------------------------------------------------------

void RankMachine::receive(const StopPhase&) {
  if (state_ != State::kPreparing && state_ != State::kPlanned && state_ != State::kMoving) return ignore("StopPhase out of turn");
  if (outcome_ || std::exchange(stopping_, true)) return ignore("second StopPhase");
  stop_tasks();
  if (!has_task_running()) report_stopped();
}

// A running hook runs to its end; only the I/O of a writer or reader can be stopped.
void RankMachine::stop_tasks() {
  effects_.emplace_back(StopTasks{});
  if (state_ != State::kMoving || outstanding_ == 0 || std::exchange(abandoned_, true)) return;
  stop_outstanding_ = run(Abandon{});
}

void RankMachine::report_stopped() { report_end_of_phase(State::kReported, PhaseStopped{}); }

void CoordinatorMachine::receive(int from, const PhaseStopped&) {
  if (state_ == State::kGlobalPlan && stopping_ && from == identity_.rank) return;  // its task goes on to the end of its hook
  if (!collects() || !stopping_ || answered_.count(from) != 0) return ignore("PhaseStopped out of turn");
  answered(from);
}

// --- 5. coordinator: its own task has failed, or nobody knows whether it has published -----------

void CoordinatorMachine::ended(const Failure& failure) {
  if (state_ == State::kSettling) return ended(Committed::kUnknown);
  outcome_.failures.insert_or_assign(identity_.rank, failure);
  if (state_ == State::kFinishing) return settle(failure.code == ErrorCode::kFenced, std::nullopt);
  end(std::exchange(outcome_.failures, {}), Committed::kNo);
}

// The caller of this rank cancelled the call while its planner made the global plan.
void CoordinatorMachine::ended(const Stopped&) {
  if (outcome_.failures.empty())
    outcome_.failures.emplace(identity_.rank,
                              failure_of(identity_.rank, FailureKind::kCancelled, ErrorCode::kCancelled, "coordinator",
                                         "the call of rank " + std::to_string(identity_.rank) + " was stopped"));
  end(std::exchange(outcome_.failures, {}), Committed::kNo);
}

// Finds out how the attempt has ended. `given_up` means that other ranks may have taken this one
// for lost, and may be ending the attempt or have ended it. Then their outcome is adopted. Asks the
// writer whether the checkpoint exists, unless `committed` says so.
void CoordinatorMachine::settle(bool given_up, std::optional<Committed> committed) {
  become(State::kSettling);
  settled_ = committed;
  start_timer(options_.cancel_grace);
  for (const auto& [rank, join] : joins_)
    if (given_up && rank != identity_.rank && left_.count(rank) == 0) ask_for_end(rank);
  if (settled_) return end_settling_if_complete();
  run(AskCommitted{});
}

void CoordinatorMachine::ask_for_end(int rank) {
  ++asked_[rank];
  request_status(rank);
}

void CoordinatorMachine::ended(Committed committed) {
  settled_ = committed;
  end_settling_if_complete();
}

void CoordinatorMachine::end_settling_if_complete() {
  if (state_ == State::kSettling && settled_ && asked_.empty()) end(std::exchange(outcome_.failures, {}), *settled_);
}

// --- 6. rank: stop the writer, then remove its files ---------------------------------------------

// With an outcome, `Abandon` stops the writer. Then, if the checkpoint does not exist, it removes
// the files, and the coordinator's writer fences the attempt. `Release` does the same without
// stopping: nothing is running, or the writer was stopped before.
void RankMachine::release() {
  become(State::kEnding);
  const Committed committed = outcome_->ending->committed;
  if (call_.operation != Operation::kSave || committed == Committed::kYes)
    outstanding_ = run(Release{});
  else
    outstanding_ = abandoned_ ? run(Release{committed}) : run(Abandon{committed});
}

// Exceptions are not encoded, so this rank puts its own back into the map.
void RankMachine::restore_own_exception(FailureMap& failures) const {
  const auto own = failures.find(identity_.rank);
  if (own == failures.end()) return;
  own->second.exception = outcome_->exception;
  if (own_failure_ && is_same_event(own->second, *own_failure_)) own->second.exception = own_failure_->exception;
}

}  // namespace cairn::protocol
