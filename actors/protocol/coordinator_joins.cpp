// How ranks join an attempt.
#include <algorithm>
#include <sstream>
#include <utility>

#include <cairn/actors/protocol/coordinator_machine.hpp>
#include <cairn/base/save_id.hpp>

namespace cairn::protocol {

void CoordinatorMachine::on(const Received& received) {
  const int from = received.from;
  if (from < 0 || from >= identity_.world_size) return ignore("message of a rank outside the world");
  down_.erase(from);
  suspects_.erase(from);
  if (const auto* status = std::get_if<StatusReply>(&received.body)) {
    const bool to_coordinator = status->inquiry == 0 && status->coordinator_rank == identity_.rank && from != identity_.rank;
    if (to_coordinator) return answer_orphan(from, received.counter, *status);
    if (status->inquiry >= kProbesFrom) return take_probe_answer(from, received.counter, *status);
    return append(succession_.receive(from, received.counter, *status));
  }
  // Join, Cancel and Withdraw name the call by its ticket. All other messages belong to the
  // attempt.
  const bool names_call = std::holds_alternative<Join>(received.body) || std::holds_alternative<Cancel>(received.body) ||
                          std::holds_alternative<Withdraw>(received.body);
  if (!names_call) {
    if (!is_attempt() || received.counter != counter_) {
      if (!is_of_progress(received.body)) send_outcome_again(from, received.counter, 0);
      return ignore("message of another attempt");
    }
    if (gone_.count(from) != 0) return ignore("message of a rank that no longer takes part");
  }
  std::visit([&](const auto& message) { receive(from, message); }, received.body);
}

// `call` is the Join of the rank or, if the rank has lost its connection, its StatusReply. With a
// counter, the outcome must be that of the same attempt.
template <class Call>
bool CoordinatorMachine::answer_missed(int from, const Call& call, std::uint64_t counter) {
  for (auto& missed : missed_) {
    const bool is_same = missed.join.operation == call.operation && missed.join.checkpoint_id == call.checkpoint_id &&
                         missed.ordinals.count(call.ordinal) != 0;
    if (!is_same || (counter != 0 && missed.ending->save_id != save_id_of(counter)) || missed.absent.erase(from) == 0) continue;
    kept_[from].ended_ticket = call.ticket;
    effects_.emplace_back(Send{from, 0, Outcome{call.ticket, missed.ending}});
    return true;
  }
  return false;
}

// Answers a rank that lost its connection to this one and reconnected. In a running attempt the
// rank counts as lost, but it still gets the outcome.
void CoordinatorMachine::answer_orphan(int from, std::uint64_t counter, const StatusReply& status) {
  const auto is_known = [&](const std::map<int, Join>& joins) {
    const auto join = joins.find(from);
    return join != joins.end() && join->second.ticket == status.ticket;
  };
  if (counter == 0 ? is_known(joins_) || is_known(next_joins_) : is_attempt() && counter == counter_ && is_known(joins_)) {
    effects_.emplace_back(Send{from, counter, StatusRequest{status, 0, identity_.rank}});
  } else if (!send_outcome_again(from, counter, status.ticket) && !answer_missed(from, status, counter)) {
    effects_.emplace_back(Send{from, counter, FollowOther{-1}});
  }
}

// Sends the outcome to a rank that still refers to an ended attempt, by its counter or, if
// `counter` is 0, by the rank's ticket.
bool CoordinatorMachine::send_outcome_again(int from, std::uint64_t counter, std::uint64_t ticket) {
  for (const auto& ended : ended_) {
    const auto member = ended.tickets.find(from);
    if (member == ended.tickets.end()) continue;
    if (counter != 0 ? ended.counter != counter : member->second != ticket) continue;
    effects_.emplace_back(Send{from, ended.counter, Outcome{member->second, ended.ending}});
    return true;
  }
  return false;
}

void CoordinatorMachine::receive(int from, const Join& join) {
  if (find_disagreement(from, join)) return;
  if (join.ticket <= kept_[from].ended_ticket) {
    send_outcome_again(from, 0, join.ticket);
    return ignore("Join of a call that has ended");
  }
  if (join.coordinator_rank != identity_.rank) return;  // it was sent for the register only
  if (answer_missed(from, join)) return;
  if (!is_attempt()) {
    const auto known = joins_.find(from);
    if (known != joins_.end() && known->second.ticket >= join.ticket) return ignore("second Join of one call");
    joins_.insert_or_assign(from, join);
    if (state_ == State::kIdle) {
      become(State::kJoining);
      wait_for_ranks(options_.join_deadline);
      for (const auto& [rank, down] : down_)
        if (!down.reachable) suspects_.insert(rank);
      all_probed_ = false;
    }
    if (!skipped_.empty() && skipped_.count(from) == 0) return fail_skipped_call();
    if (from == identity_.rank) ask_later();
    return join_if_complete();
  }
  const auto member = joins_.find(from);
  if (member != joins_.end() && member->second.ticket >= join.ticket) return ignore("second Join of one call");
  next_joins_.insert_or_assign(from, join);
  // The rank has left this attempt without notice.
  left_.insert(from);
  if (!gone_.insert(from).second) return;
  fail(from, failure_of(from, FailureKind::kInternal, ErrorCode::kInternal, "coordinator",
                        "rank " + std::to_string(from) + " started another call before this one had ended"));
}

// The registrar also gets the Joins of calls that other ranks coordinate. It tells the ranks itself
// when they name different coordinators.
bool CoordinatorMachine::find_disagreement(int from, const Join& join) {
  if (identity_.rank != kRegistrar) return false;
  const auto found = register_.add(from, join);
  if (!found) return false;
  for (const auto& [rank, ticket] : found->tickets) {
    kept_[rank].ended_ticket = std::max(kept_[rank].ended_ticket, ticket);
    const auto member = joins_.find(rank);
    if (!is_attempt() && member != joins_.end() && member->second.ticket == ticket) forget_join(rank);
    next_joins_.erase(rank);
    if (down_.count(rank) == 0) effects_.emplace_back(Send{rank, 0, Outcome{ticket, found->ending}});
  }
  return true;
}

// A rank ended its call without a Join, such as one that cannot be sent. Without it the other ranks
// would wait in vain, so their call fails too.
void CoordinatorMachine::skip_call(int rank, Failure failure) {
  for (auto& missed : missed_)
    if (missed.absent.erase(rank) != 0) return;  // their call has failed already
  const bool wait_for_it = state_ == State::kJoining && skipped_.empty();
  Skipped& skipped = skipped_[rank];
  skipped.failure = std::move(failure);
  ++skipped.calls;
  if (wait_for_it) return fail_skipped_call();
  if (skipped_.size() < static_cast<std::size_t>(identity_.world_size)) return;
  count_skipped_call();  // no rank waits for this one
  const auto waits = [&](const auto& join) { return skipped_.count(join.first) == 0; };
  if (!skipped_.empty() && std::any_of(joins_.begin(), joins_.end(), waits)) fail_skipped_call();
}

// Fails the call of the ranks that have joined. A rank that skipped this call may have joined a
// later one; keeps its Join for that call.
void CoordinatorMachine::fail_skipped_call() {
  FailureMap failures;
  for (const auto& [rank, skipped] : skipped_) {
    failures.emplace(rank, skipped.failure);
    if (auto later = joins_.extract(rank)) next_joins_.insert(std::move(later));
  }
  end(failures, Committed::kNo);
}

// Returns whether ranks have skipped the call that is being joined. If not, the ranks that have
// joined have skipped an earlier call, which the others have yet to make.
bool CoordinatorMachine::was_skipped() const {
  return !skipped_.empty() && !joins_.empty() && skipped_.count(joins_.begin()->first) == 0;
}

void CoordinatorMachine::count_skipped_call() {
  for (auto it = skipped_.begin(); it != skipped_.end();) it = --it->second.calls == 0 ? skipped_.erase(it) : std::next(it);
}

// Undoes the Join of a rank while the ranks join.
void CoordinatorMachine::forget_join(int rank) {
  joins_.erase(rank);
  if (!joins_.empty()) return;
  effects_.emplace_back(StopTimer{Timer::kPhase});
  stop_joining();
  become(State::kIdle);
}

void CoordinatorMachine::stop_joining() {
  suspects_.clear();
  probed_.clear();
  if (identity_.world_size > 1) effects_.emplace_back(StopTimer{Timer::kProbe});
}

void CoordinatorMachine::receive(int from, const Withdraw& withdraw) {
  kept_[from].ended_ticket = std::max(kept_[from].ended_ticket, withdraw.ticket);
  const auto next = next_joins_.find(from);
  if (next != next_joins_.end() && next->second.ticket <= withdraw.ticket) next_joins_.erase(next);
  const auto member = joins_.find(from);
  if (member == joins_.end() || member->second.ticket != withdraw.ticket) return ignore("Withdraw of another call");
  if (!is_attempt()) return forget_join(from);
  // The attempt has begun meanwhile, with a rank that has left.
  left_.insert(from);
  if (!gone_.insert(from).second) return;
  fail(from, failure_of(from, FailureKind::kInternal, ErrorCode::kInternal, "coordinator",
                        "rank " + std::to_string(from) + " had ended the call before it began"));
}

void CoordinatorMachine::join_if_complete() {
  if (joins_.count(identity_.rank) == 0) return;
  // No rank in `down_` has joined.
  if (joins_.size() + down_.size() < static_cast<std::size_t>(identity_.world_size) || probe_lost_ranks()) return;
  stop_joining();
  FailureMap failures = judge_joins();
  if (failures.empty())
    begin();
  else
    end(failures, Committed::kNo);
}

// Probes ranks that were lost but may be back and about to join. Sending a message makes the links
// connect, and a live rank answers.
bool CoordinatorMachine::probe_lost_ranks() {
  if (suspects_.empty()) return false;
  if (std::exchange(all_probed_, true)) return true;
  bool asked = false;
  for (const int rank : suspects_) {
    if (!probed_.insert(rank).second) continue;
    asked = true;
    request_status(rank);
  }
  if (asked) effects_.emplace_back(StartTimer{Timer::kProbe, 2 * options_.heartbeat_timeout});
  return true;
}

// Asks about this call. `take_probe_answer` handles the answer.
void CoordinatorMachine::request_status(int rank) {
  const Join& own = own_join();
  send(rank, StatusRequest{own, kProbesFrom + own.ordinal, identity_.rank});
}

// If the others gave up on this coordinator, they may have ended the call without it. This handles
// their answer.
void CoordinatorMachine::take_probe_answer(int from, std::uint64_t counter, const StatusReply& status) {
  const bool waits = state_ == State::kJoining || state_ == State::kSettling;
  if (!waits || joins_.count(identity_.rank) == 0 || status.inquiry != kProbesFrom + own_join().ordinal) return;
  const bool knows_nothing = status.kind == RankStatus::kAbsent || status.kind == RankStatus::kAttached;
  if (knows_nothing && asked_.erase(from) != 0) return end_settling_if_complete();
  if (status.kind != RankStatus::kEnded) return;
  // Ranks may count their calls differently. An ended attempt with a counter cannot belong to this
  // call, which has not begun.
  if (state_ == State::kJoining && counter != 0) return ignore("outcome of another call");
  if (state_ == State::kJoining) put_off_other_calls();
  end(status.ending);
}

// While the ranks join, some of them may already be at the next call.
void CoordinatorMachine::put_off_other_calls() {
  const Join own = own_join();
  for (auto join = joins_.begin(); join != joins_.end();) {
    if (is_same_call(join->second, own)) {
      ++join;
      continue;
    }
    next_joins_.insert_or_assign(join->first, join->second);
    join = joins_.erase(join);
  }
}

namespace {

// Returns the first option that differs, as both ranks have it.
std::string first_difference(const Join& a, const std::string& rank_a, const Join& b, const std::string& rank_b) {
  std::istringstream lines_a(a.text), lines_b(b.text);
  for (std::string line_a, line_b; lines_a || lines_b; line_a.clear(), line_b.clear()) {
    std::getline(lines_a, line_a);
    std::getline(lines_b, line_b);
    if (line_a != line_b) return '"' + line_a + "\" on " + rank_a + ", \"" + line_b + "\" on " + rank_b;
  }
  // Beyond the bound of the texts.
  return "digests " + to_hex(a.options_digest).substr(0, 12) + " and " + to_hex(b.options_digest).substr(0, 12);
}

}  // namespace

// Returns the failures of missing ranks, and of ranks whose call differs from the coordinator's
// own.
FailureMap CoordinatorMachine::judge_joins() const {
  FailureMap failures;
  for (const auto& [rank, down] : down_) {
    if (joins_.count(rank) != 0) continue;
    failures.emplace(rank, failure_of(rank, down.kind, down.code, "link",
                                      "lost touch with rank " + std::to_string(rank) + " before it joined: " + down.why));
  }
  const Join& own = own_join();
  const std::string self = "rank " + std::to_string(identity_.rank);
  for (const auto& [rank, join] : joins_) {
    const std::string other = "rank " + std::to_string(rank);
    std::string what;
    if (join.operation != own.operation || join.checkpoint_id != own.checkpoint_id)
      what = other + " called " + describe_call(join) + ", where " + self + " called " + describe_call(own) +
             "; all ranks of a checkpointer must make the same calls in the same order";
    else if (join.world_size != own.world_size)
      what = other + " has a world of " + std::to_string(join.world_size) + " ranks, where " + self + " has one of " +
             std::to_string(own.world_size);
    else if (join.options_digest != own.options_digest)
      what = other + " called " + describe_call(join) + " with options that differ from those of " + self + ": " +
             first_difference(join, other, own, self) + "; pass the same options on every rank";
    if (!what.empty())
      failures.emplace(rank, failure_of(rank, FailureKind::kRaised, ErrorCode::kMismatch, "coordinator", what));
  }
  return failures;
}

// All texts have come with the Joins, so no other rank has work left that could fail.
void CoordinatorMachine::decide() {
  become(State::kDeciding);
  start_timer(options_.phase_deadline);
  Decide task;
  for (const auto& [rank, join] : joins_) {
    answered_.insert(rank);
    task.texts.push_back(join.text);
  }
  run(std::move(task));
}

void CoordinatorMachine::ended(const Answer& answer) {
  if (!outcome_.failures.empty()) return end(std::exchange(outcome_.failures, {}), Committed::kNo);
  end(make_ending({}, Committed::kNo, save_id_of(counter_), answer.text));
}

}  // namespace cairn::protocol
