#include <cairn/actors/protocol/succession.hpp>

#include <algorithm>
#include <utility>

#include <cairn/actors/protocol/call_register.hpp>
#include <cairn/base/save_id.hpp>

namespace cairn::protocol {
namespace {

// Separates these task numbers from those of the coordinator machine, whose tasks use the same
// path.
constexpr std::uint64_t kTasksFrom = std::uint64_t{1} << 63;
// After this many broken links a rank counts as gone.
constexpr int kLossesMax = 4;
// After this many rounds of waiting for the followers of an earlier successor, this one yields even
// if it cannot reach that successor.
constexpr int kYieldRoundsMax = 3;

// The coordinator's own rank, whose coordinator actor has died, comes last. For its own calls it
// turns to all other ranks first.
int distance(int rank, int coordinator, int world_size) {
  return rank == coordinator ? world_size : (rank - coordinator + world_size) % world_size;
}

}  // namespace

StatusReply ended_reply(std::uint64_t ordinal, int coordinator, std::uint64_t ticket, std::shared_ptr<const Ending> ending) {
  StatusReply told;
  told.inquiry = kProbesFrom + ordinal;
  told.kind = RankStatus::kEnded;
  told.coordinator_rank = coordinator;
  told.ticket = ticket;
  told.ending = std::move(ending);
  return told;
}

bool succeeds_before(int rank, int other, int coordinator, int world_size) {
  return distance(rank, coordinator, world_size) < distance(other, coordinator, world_size);
}

// --- events --------------------------------------------------------------------------------------

Effects Succession::receive(int from, std::uint64_t counter, const StatusReply& status) {
  effects_.clear();
  if (status.inquiry == 0)
    take_takeover_request(from, counter, status);
  else
    take_answer(from, counter, status);
  return std::exchange(effects_, {});
}

// Like RankMachine::is_in.
bool Succession::is_of_this_call(std::uint64_t counter, const StatusReply& status) const {
  if (status.coordinator_rank != coordinator_) return false;
  if (counter != 0 && counter_ != 0) return counter == counter_;
  return is_same_call(call_, status);
}

// An orphan asks this rank to succeed its coordinator.
void Succession::take_takeover_request(int from, std::uint64_t counter, const StatusReply& status) {
  if (const Ended* ended = find_ended(counter, status)) return answer(from, *ended, status.ticket);
  if (stage_ == Stage::kIdle) return start(counter, status);
  if (!is_of_this_call(counter, status)) {
    takeover_requests_.insert_or_assign(from, TakeoverRequest{counter, status});
  } else if (members_[from].state != Member::State::kAsked && stage_ != Stage::kAskingStore) {
    ask(from);  // one of the two ranks has lost the other's message
  }
}

void Succession::take_answer(int from, std::uint64_t counter, const StatusReply& status) {
  if (stage_ == Stage::kIdle || status.inquiry != inquiry_) {
    const Ended* ended = find_ended(counter, status);
    if (ended && from == ended->coordinator && counter == 0 && status.kind == RankStatus::kAttached)
      return tell_coordinator(*ended, status);
    // The sender follows this rank, which has finished that call.
    if (status.kind != RankStatus::kOrphaned) return ignore("answer to a question of another succession");
    if (ended) return answer(from, *ended, status.ticket);
    effects_.emplace_back(Send{from, counter, FollowOther{-1}});
    return;
  }
  change(from, [&](Member& member) {
    member.state = Member::State::kHeard;
    member.was_heard = true;
    member.status = status;
  });
  if (stage_ == Stage::kAskingStore) return;  // told with the others when the outcome is known
  if (counter_ == 0 && status.kind != RankStatus::kAbsent) counter_ = counter;
  evaluate();
}

Effects Succession::on(const PeerDown& down) {
  effects_.clear();
  takeover_requests_.erase(down.rank);
  const bool asks = stage_ != Stage::kIdle && stage_ != Stage::kAskingStore;
  if (!asks || down.reachable || down.rank == identity_.rank) return {};
  Member& member = members_[down.rank];
  if (!member.down) member.down = down;
  // A broken link does not prove that the rank is dead. It may reconnect at once, and may have
  // turned to another successor meanwhile.
  if (++member.losses < kLossesMax)
    ask(down.rank);
  else
    change(down.rank, [](Member& gone) { gone.state = Member::State::kGone; });
  evaluate();
  return std::exchange(effects_, {});
}

Effects Succession::on(const TimerFired&) {
  effects_.clear();
  if (stage_ == Stage::kIdle) return {};
  if (stage_ == Stage::kAskingStore) {
    outstanding_ = 0;
    conclude(proven_unpublished_ ? Committed::kNo : Committed::kUnknown);
    return std::exchange(effects_, {});
  }
  for (auto& [rank, member] : members_)
    if (member.state == Member::State::kAsked) change(rank, [](Member& gone) { gone.state = Member::State::kGone; });
  if (stage_ == Stage::kGrace) {
    stage_ = Stage::kStopping;
    for (const auto& [rank, member] : members_)
      if (follows(member) && member.status.busy) send(rank, StopPhase{});
    start_timer(options_.cancel_grace);
  } else if (stage_ == Stage::kStopping) {
    stage_ = Stage::kOver;
  }
  if (stage_ == Stage::kGathering) ++rounds_;
  evaluate();
  // Still waiting for what others learn. Asking again tells the followers that this rank is alive,
  // and replaces lost messages.
  if (stage_ == Stage::kGathering) {
    told_of_orphans_ = false;
    for (auto& [rank, member] : members_)
      if (member.state == Member::State::kHeard && member.status.kind != RankStatus::kAbsent) ask(rank);
    start_timer(answer_deadline());
  }
  return std::exchange(effects_, {});
}

Effects Succession::on(const TaskEnded& task) {
  effects_.clear();
  outstanding_ = 0;
  const auto* answer = std::get_if<Committed>(&task.result);
  Committed committed = answer ? *answer : Committed::kUnknown;
  if (committed == Committed::kUnknown && proven_unpublished_) committed = Committed::kNo;
  conclude(committed);
  return std::exchange(effects_, {});
}

Effects Succession::on(const Cancelled&) {
  effects_.clear();
  if (stage_ != Stage::kIdle) hand_over(-1);
  takeover_requests_.clear();
  return std::exchange(effects_, {});
}

// --- gathering -----------------------------------------------------------------------------------

void Succession::start(std::uint64_t counter, const StatusReply& status) {
  coordinator_ = status.coordinator_rank;
  counter_ = counter;
  call_ = status;
  members_.clear();
  tally_ = {};
  returnable_.clear();
  told_of_orphans_ = false;
  outcome_.failures.clear();
  proven_unpublished_ = false;
  rounds_ = 0;
  ++inquiry_;
  stage_ = Stage::kGathering;
  note(SuccessionState::kGathering);
  for (int rank = 0; rank < identity_.world_size; ++rank) ask(rank);
  change(coordinator_, [](Member&) {});  // makes the coordinator a member, whatever rank was named
  start_timer(answer_deadline());
}

void Succession::ask(int rank) {
  change(rank, [](Member& member) { member.state = Member::State::kAsked; });
  send(rank, StatusRequest{call_, inquiry_, coordinator_});
}

template <class Change>
void Succession::change(int rank, Change apply) {
  const auto [member, is_new] = members_.try_emplace(rank);
  if (!is_new) count(member->second, -1);
  apply(member->second);
  count(member->second, 1);
  if (follows(member->second) && !member->second.status.cannot_join)
    returnable_.insert(rank);
  else
    returnable_.erase(rank);
}

void Succession::count(const Member& member, int by) {
  if (member.state == Member::State::kAsked) tally_.asked += by;
  if (member.state != Member::State::kHeard) return;
  const StatusReply& status = member.status;
  switch (status.kind) {
    case RankStatus::kEnded:
      tally_.ended += by;
      return;
    case RankStatus::kPromised:
      if ((tally_.promised[status.leader] += by) == 0) tally_.promised.erase(status.leader);
      tally_.waiting += by;
      return;
    case RankStatus::kAttached:
      tally_.waiting += by;
      return;
    case RankStatus::kOrphaned:
      tally_.followers += by;
      if (status.cannot_join) tally_.stranded += by;
      if (status.busy) tally_.busy += by;
      if (status.lost->kind != FailureKind::kSilent) tally_.saw_it_go += by;
      return;
    case RankStatus::kAbsent:
      return;
  }
}

void Succession::evaluate() {
  if (tally_.ended != 0) {
    for (const auto& [rank, member] : members_)
      if (member.state == Member::State::kHeard && member.status.kind == RankStatus::kEnded) return conclude(member.status.ending);
  }
  const Member& coordinator = members_[coordinator_];
  if (has_not_called(coordinator) && !send_back()) return go_idle();
  if (find_earlier_successor()) return;
  tell_of_orphans();
  const bool not_awaited = coordinator.state == Member::State::kAsked && !coordinator.was_heard && is_silent_to_followers();
  if (tally_.asked > (not_awaited ? 1 : 0)) return;
  if (tally_.waiting != 0 && stage_ != Stage::kOver) return;
  if (has_not_called(coordinator) && rounds_ * answer_deadline() < options_.join_deadline) return;
  if (tally_.busy == 0 || stage_ == Stage::kOver) return decide();
  if (stage_ != Stage::kGathering) return;
  stage_ = Stage::kGrace;
  start_timer(options_.phase_grace);
}

// The coordinator is alive and has not made the call yet, so the call has not begun.
bool Succession::has_not_called(const Member& coordinator) const {
  return counter_ == 0 && coordinator.state == Member::State::kHeard && coordinator.status.kind == RankStatus::kAbsent;
}

// Sends followers back to the coordinator, to join it again. Followers that cannot connect to it
// stay. Returns whether any rank needs this succession: such a follower, or one that requested a
// takeover and has yet to answer.
bool Succession::send_back() {
  for (const int rank : std::exchange(returnable_, {})) {
    send(rank, FollowOther{coordinator_});
    change(rank, [](Member& returned) { returned.status.kind = RankStatus::kAttached; });
  }
  return tally_.stranded != 0 || (call_.cannot_join && tally_.asked != 0);
}

// Two successors that wait for each other's followers would never finish, so the later one yields.
bool Succession::find_earlier_successor() {
  for (const auto& [leader, followers] : tally_.promised) {
    if (leader == identity_.rank || !succeeds_before(leader, identity_.rank, coordinator_, identity_.world_size)) continue;
    // If that successor is gone, its followers will notice.
    const auto member = members_.find(leader);
    const bool was_heard = member != members_.end() && member->second.state == Member::State::kHeard;
    if (!was_heard && rounds_ < kYieldRoundsMax) continue;
    hand_over(leader);
    return true;
  }
  return false;
}

// All followers have watched the coordinator for a full `heartbeat_timeout`, so asking it again is
// useless, unless it has answered before. If its first answer comes before the outcome, the answer
// counts like any other.
bool Succession::is_silent_to_followers() const { return tally_.followers != 0 && tally_.saw_it_go == 0; }

void Succession::hand_over(int leader) {
  for (const auto& [rank, member] : members_)
    if (follows(member)) send(rank, FollowOther{leader});
  go_idle();
}

// --- the outcome ---------------------------------------------------------------------------------

void Succession::decide() {
  outcome_.failures = judge();
  proven_unpublished_ = std::any_of(members_.begin(), members_.end(),
                                    [this](const auto& entry) { return follows(entry.second) && !entry.second.status.delivered; });
  const Member& own = members_[identity_.rank];
  const bool may_exist = call_.operation == Operation::kSave && counter_ != 0;
  if (may_exist && follows(own) && own.status.delivered && !own.status.busy) {
    stage_ = Stage::kAskingStore;
    note(SuccessionState::kAskingStore);
    start_timer(options_.cancel_grace);
    RunTask ask;
    ask.task = AskCommitted{};
    ask.operation = Operation::kSave;
    ask.phase = Phase::kFinish;
    ask.sequence = outstanding_ = kTasksFrom + ++tasks_run_;
    ask.counter = counter_;
    ask.save_id = make_save_id(identity_.incarnation, identity_.checkpointer, counter_);
    effects_.emplace_back(std::move(ask));
    return;
  }
  conclude(may_exist && !proven_unpublished_ ? Committed::kUnknown : Committed::kNo);
}

FailureMap Succession::judge() const {
  FailureMap failures;
  failures.emplace(coordinator_, coordinators_failure());
  const Phase phase = failures.begin()->second.phase;
  for (const auto& [rank, member] : members_) {
    if (rank == coordinator_) continue;
    if (member.state == Member::State::kGone) {
      PeerDown down;
      down.rank = rank;
      down.kind = FailureKind::kSilent;
      down.code = ErrorCode::kDeadline;
      down.why = "it did not answer rank " + std::to_string(identity_.rank) + ", which ends the call in place of rank " +
                 std::to_string(coordinator_);
      failures.emplace(rank, failure_of(member.down ? *member.down : down, phase));
    } else if (member.state == Member::State::kHeard && member.status.failure) {
      failures.emplace(rank, *member.status.failure).first->second.rank = rank;
    } else if (follows(member) && member.status.busy) {
      failures.emplace(rank, make_failure(rank, phase, FailureKind::kBusy, ErrorCode::kDeadline, "coordinator",
                                          "rank " + std::to_string(rank) + " was told to stop after the loss of rank " +
                                              std::to_string(coordinator_) +
                                              ", and had not when its time was over; its call returns when its hook does"));
    }
  }
  return failures;
}

// Returns the failure as seen by this rank, or else by the lowest rank that saw it.
Failure Succession::coordinators_failure() const {
  const auto seen_by = [this](int rank) -> const Failure* {
    const auto found = members_.find(rank);
    if (found == members_.end() || !follows(found->second)) return nullptr;
    return &*found->second.status.lost;
  };
  const Failure* failure = seen_by(identity_.rank);
  for (int rank = 0; failure == nullptr && rank < identity_.world_size; ++rank) failure = seen_by(rank);
  if (failure == nullptr) failure = &*call_.lost;
  Failure copy = *failure;
  copy.rank = coordinator_;
  return copy;
}

void Succession::conclude(Committed committed) {
  conclude(make_ending(outcome_.failures, committed,
                       counter_ == 0 ? "" : make_save_id(identity_.incarnation, identity_.checkpointer, counter_)));
}

// Sends the final outcome to all followers. The own rank is told last: its call may return and its
// trainer exit, so the other outcomes must be on their way.
void Succession::conclude(const std::shared_ptr<const Ending>& ending) {
  Ended ended{coordinator_, counter_, call_.operation, call_.checkpoint_id, {call_.ordinal}, ending};
  const auto tell = [&](int rank) {
    const Member& member = members_[rank];
    if (!follows(member)) return;
    ended.ordinals.insert(member.status.ordinal);
    answer(rank, ended, member.status.ticket);
  };
  for (int rank = 0; rank < identity_.world_size; ++rank)
    if (rank != identity_.rank) tell(rank);
  tell(identity_.rank);
  ended_.push_back(std::move(ended));
  if (ended_.size() > options_.outcomes_kept) ended_.pop_front();
  go_idle();
}

void Succession::go_idle() {
  stage_ = Stage::kIdle;
  outstanding_ = 0;
  counter_ = 0;
  members_.clear();
  returnable_.clear();
  outcome_.failures.clear();
  effects_.emplace_back(StopTimer{Timer::kSuccession});
  note(SuccessionState::kIdle);
  for (const auto& [from, request] : std::exchange(takeover_requests_, {}))
    take_takeover_request(from, request.counter, request.status);
}

// An attempt is known by its counter. A rank that never got a counter knows only the call.
const Succession::Ended* Succession::find_ended(std::uint64_t counter, const StatusReply& status) const {
  for (const auto& ended : ended_) {
    if (ended.coordinator != status.coordinator_rank) continue;
    const bool same_call = ended.operation == status.operation && ended.checkpoint_id == status.checkpoint_id &&
                           ended.ordinals.count(status.ordinal) != 0;
    if (counter != 0 && ended.counter != 0 ? ended.counter == counter : same_call) return &ended;
  }
  return nullptr;
}

// Tells a coordinator that was away while its call was ended, and that still waits for ranks to
// join.
void Succession::tell_coordinator(const Ended& ended, const StatusReply& its) {
  effects_.emplace_back(
      Send{ended.coordinator, ended.counter, ended_reply(its.ordinal, ended.coordinator, its.ticket, ended.ending)});
}

// Tells the coordinator about ranks that cannot reach it. It waits for them to join, and ends the
// call at the first such message.
void Succession::tell_of_orphans() {
  const Member& coordinator = members_[coordinator_];
  if (told_of_orphans_ || tally_.followers == 0 || counter_ != 0 || coordinator.state != Member::State::kHeard ||
      coordinator.status.kind != RankStatus::kAttached)
    return;
  told_of_orphans_ = true;
  FailureMap failures;
  for (const auto& [rank, member] : members_) {
    if (!follows(member)) continue;
    const Failure& lost = *member.status.lost;
    failures.emplace(rank, make_failure(rank, Phase::kJoin, FailureKind::kLost, lost.code, "link",
                                        "rank " + std::to_string(rank) + " cannot reach its coordinator: " + lost.what));
  }
  send(coordinator_,
       ended_reply(coordinator.status.ordinal, coordinator_, coordinator.status.ticket, make_ending(failures, Committed::kNo, "")));
}

void Succession::answer(int to, const Ended& ended, std::uint64_t ticket) {
  effects_.emplace_back(Send{to, ended.counter, Outcome{ticket, ended.ending}});
}

}  // namespace cairn::protocol
