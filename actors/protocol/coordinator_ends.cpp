// Early ends of attempts: deadlines, lost ranks, cancellation. save.cpp sends the outcomes.
#include <algorithm>
#include <utility>
#include <vector>

#include <cairn/actors/protocol/coordinator_machine.hpp>
#include <cairn/base/rank_text.hpp>

namespace cairn::protocol {

void CoordinatorMachine::on(const TimerFired& fired) {
  if (fired.timer == Timer::kSuccession) return append(succession_.on(fired));
  if (fired.timer == Timer::kProbe) {
    if (state_ != State::kJoining) return ignore_timer();
    if (probed_.empty()) return ask_absent_ranks();
    suspects_.clear();
    return join_if_complete();
  }
  if (fired.timer == Timer::kWaiting && (state_ == State::kJoining || collects())) return warn_of_waiting();
  if (fired.timer != Timer::kPhase || state_ == State::kIdle) return ignore_timer();
  if (hurried_ && !stopping_) return tell_to_stop();
  const auto silent = [&](int rank, const std::string& what) {
    return failure_of(rank, FailureKind::kSilent, ErrorCode::kDeadline, "coordinator", what);
  };
  FailureMap failures = std::exchange(outcome_.failures, {});
  if (state_ == State::kJoining) {
    std::vector<int> present;
    for (const auto& [rank, join] : joins_) present.push_back(rank);
    const std::string call = describe_call(joins_.begin()->second);
    for (int rank = 0; rank < identity_.world_size; ++rank)
      if (joins_.count(rank) == 0)
        failures.emplace(rank, silent(rank, "rank " + std::to_string(rank) + " did not join the " + call + " by checkpointer \"" +
                                                identity_.checkpointer + "\" within " + in_seconds(options_.join_deadline) + "; " +
                                                name_ranks(present) + " did"));
    return end(failures, Committed::kNo);
  }
  if (stopping_) {
    std::vector<int> failed;
    for (const auto& [rank, failure] : failures) failed.push_back(rank);
    for (const auto& [rank, join] : joins_)
      if (answered_.count(rank) == 0)
        failures.emplace(rank, failure_of(rank, FailureKind::kBusy, ErrorCode::kDeadline, "coordinator",
                                          "rank " + std::to_string(rank) + " was told to stop its " + to_string(phase()) +
                                              " phase after the failure of " + name_ranks(failed) + ", and had not after " +
                                              in_seconds(options_.cancel_grace) + "; its call returns when its hook does"));
    return end(failures, Committed::kNo);
  }
  if (collects()) {
    for (const auto& [rank, join] : joins_)
      if (answered_.count(rank) == 0)
        failures.emplace(rank, silent(rank, "rank " + std::to_string(rank) + " did not end its " + to_string(phase()) +
                                                " phase within " + in_seconds(options_.phase_deadline)));
    return end(failures, Committed::kNo);
  }
  if (settled_) return end(failures, *settled_);
  // A hook of this rank is running. It is user code and cannot be interrupted.
  const Duration waited = state_ == State::kSettling ? options_.cancel_grace : options_.phase_deadline;
  failures.emplace(identity_.rank, silent(identity_.rank, own_hook() + " had not ended within " + in_seconds(waited)));
  const bool may_exist = state_ == State::kFinishing || state_ == State::kSettling;
  end(failures, may_exist ? Committed::kUnknown : Committed::kNo);
}

void CoordinatorMachine::on(const PeerDown& down) {
  if (down.rank == identity_.rank) return;
  append(succession_.on(down));
  const auto failure = [&] { return protocol::failure_of(down, phase()); };
  if (down.reachable) {
    if (is_attempt()) {
      if (gone_.count(down.rank) == 0) fail(down.rank, failure());
      return;
    }
    if (down.code != ErrorCode::kCorrupt) return;  // a message that could not be sent belonged to an ended call
    // The unreadable message may have been the rank's Join.
    if (state_ == State::kIdle) {
      down_.insert_or_assign(down.rank, down);
      return;
    }
    return end({{down.rank, failure()}}, Committed::kNo);
  }
  down_.insert_or_assign(down.rank, down);
  suspects_.erase(down.rank);
  next_joins_.erase(down.rank);
  if (state_ == State::kJoining) {
    // A rank that closed the link may have done so in an earlier call, and may come back. A rank
    // that was silent, could not be connected to, or is lost a second time, is lost.
    if (down.kind == FailureKind::kLost && !down.unopened && probed_.count(down.rank) == 0) {
      suspects_.insert(down.rank);
      all_probed_ = false;
    }
    forget_join(down.rank);
    if (state_ == State::kJoining) join_if_complete();
    return;
  }
  if (!is_attempt()) return;
  const auto asked = asked_.find(down.rank);
  if (asked != asked_.end()) {
    if (asked->second == 1) return ask_for_end(down.rank);  // the link may have broken long ago, while this rank was away
    asked_.erase(asked);
    return end_settling_if_complete();
  }
  if (down.gave_up && state_ != State::kSettling) {
    if (state_ != State::kFinishing) return resign(down);
    given_up_ = true;
  }
  if (!gone_.insert(down.rank).second) return;
  fail(down.rank, failure());
}

// This process stood still, and ranks that heard nothing of it are ending the call with a
// successor. A map by this coordinator would list them. So all ranks, this one included, turn to a
// successor.
void CoordinatorMachine::resign(const PeerDown& down) {
  const Failure failure = failure_of(identity_.rank, FailureKind::kSilent, ErrorCode::kDeadline, "link",
                                     "rank " + std::to_string(identity_.rank) + " stood still: " + down.why);
  for (const auto& [rank, join] : joins_) {
    kept_[rank].ended_ticket = std::max(kept_[rank].ended_ticket, join.ticket);
    if (left_.count(rank) == 0 && down_.count(rank) == 0) send(rank, CoordinatorDown{failure, join.ticket});
  }
  effects_.emplace_back(StateChanged{CallTurn::kResigned});
  forget_call();
}

// Only the death of the links concerns this machine: messages were lost, so the attempt cannot go
// on. While ranks join, those that lost the link join again. During publication nothing is awaited
// of the others, who ask for the outcome.
void CoordinatorMachine::on(const ActorDied& died) {
  if (died.actor != Actor::kLinks || !(collects() || decides())) return;
  outcome_.failures.insert_or_assign(identity_.rank, protocol::failure_of(died, identity_.rank, phase()));
  end(std::exchange(outcome_.failures, {}), Committed::kNo);
}

void CoordinatorMachine::on(const PeerUp& up) {
  down_.erase(up.rank);
  suspects_.erase(up.rank);
}

void CoordinatorMachine::on(const Cancelled& cancelled) {
  append(succession_.on(cancelled));
  if (state_ == State::kIdle) return;
  FailureMap failures = std::exchange(outcome_.failures, {});
  failures.emplace(identity_.rank,
                   failure_of(identity_.rank, FailureKind::kCancelled, ErrorCode::kCancelled, "supervisor", cancelled.why));
  const bool may_exist = state_ == State::kFinishing || state_ == State::kSettling;
  end(failures, may_exist ? Committed::kUnknown : Committed::kNo);
}

// Handles a Cancel from a rank's caller. That rank stays in the call and gets the same outcome as
// the others.
void CoordinatorMachine::cancel_call(int from, const Cancel& message) {
  Failure failure = message.failure;
  failure.rank = from;
  const auto next = next_joins_.find(from);
  if (next != next_joins_.end() && next->second.ticket == message.ticket) return end_next_call(from, std::move(failure));
  const auto member = joins_.find(from);
  if (member == joins_.end() || member->second.ticket != message.ticket || gone_.count(from) != 0)
    return ignore("Cancel of another call");
  // All results are in, so publication may have begun and cannot be undone.
  if (state_ == State::kFinishing || state_ == State::kSettling) return ignore("Cancel of a save that is being published");
  if (failure.code == ErrorCode::kDeadline) {
    // Uses one text for all ranks of the call: their deadlines expire together, and ranks with
    // equal causes form one group in the failure map.
    if (awaited_at_cancel_.empty()) awaited_at_cancel_ = awaited();
    failure = make_failure(
        from, failure.phase, failure.kind, failure.code, failure.actor.c_str(),
        failure.what + "; rank " + std::to_string(identity_.rank) + ", which coordinates, was waiting for " + awaited_at_cancel_);
  }
  if (state_ == State::kJoining) return end({{from, std::move(failure)}}, Committed::kNo);
  outcome_.failures.emplace(from, std::move(failure));
  if (decides() && !stopping_) answered_.erase(identity_.rank);  // all ranks wait for its hook
  if (!stopping_) tell_to_stop();
  end_phase_if_complete();
}

// Ends a call that waits for the running one to end. Ranks that have joined it are told now; ranks
// that join it later are told then.
void CoordinatorMachine::end_next_call(int from, Failure failure) {
  const Join call = next_joins_.at(from);
  Missed missed{call, {}, {}, make_ending({{from, std::move(failure)}}, Committed::kNo, {})};
  for (int rank = 0; rank < identity_.world_size; ++rank) {
    const auto next = next_joins_.find(rank);
    if (next == next_joins_.end() || !is_same_call(next->second, call)) {
      missed.absent.insert(rank);
      continue;
    }
    kept_[rank].ended_ticket = std::max(kept_[rank].ended_ticket, next->second.ticket);
    if (down_.count(rank) == 0) effects_.emplace_back(Send{rank, 0, Outcome{next->second.ticket, missed.ending}});
    next_joins_.erase(next);
  }
  missed.ordinals.insert(call.ordinal);
  missed_.push_back(std::move(missed));
  if (missed_.size() > options_.outcomes_kept) missed_.pop_front();
}

void CoordinatorMachine::forget_call() {
  effects_.emplace_back(StopTimer{Timer::kPhase});
  stop_joining();
  static_cast<CoordinatedCall&>(*this) = CoordinatedCall();
  become(State::kIdle);
  restart_joins();
}

// Keeps the outcome for ranks that still send messages of this attempt, and for ranks that have not
// joined this call yet.
void CoordinatorMachine::remember(const std::shared_ptr<const Ending>& ending) {
  Ended ended{counter_, {}, ending};
  for (const auto& [rank, join] : joins_) ended.tickets.emplace(rank, join.ticket);
  ended_.push_back(std::move(ended));
  if (ended_.size() > options_.outcomes_kept) ended_.pop_front();
  if (counter_ != 0) return;
  Missed missed{joins_.begin()->second, {}, {}, ending};
  for (const auto& [rank, join] : joins_) missed.ordinals.insert(join.ordinal);
  for (int rank = 0; rank < identity_.world_size; ++rank)
    if (joins_.count(rank) == 0 && !(was_skipped() && skipped_.count(rank) != 0)) missed.absent.insert(rank);
  if (missed.absent.empty()) return;
  missed_.push_back(std::move(missed));
  if (missed_.size() > options_.outcomes_kept) missed_.pop_front();
}

void CoordinatorMachine::restart_joins() {
  for (auto& [rank, join] : std::exchange(next_joins_, {}))
    if (down_.count(rank) == 0) receive(rank, join);
}

}  // namespace cairn::protocol
