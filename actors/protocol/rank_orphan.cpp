// A rank whose coordinator is lost: the ranks it turns to, and its answers to ranks that ask.
#include <utility>

#include <cairn/actors/protocol/call_register.hpp>
#include <cairn/actors/protocol/rank_machine.hpp>
#include <cairn/actors/protocol/succession.hpp>

namespace cairn::protocol {

// --- accepted senders ----------------------------------------------------------------------------

// Accepts messages of the coordinator; after its loss, of its successor; and the registrar's
// outcome of a call that has not begun.
bool RankMachine::is_heard(const Received& received) const {
  const auto* outcome = std::get_if<Outcome>(&received.body);
  if (!lost_) {
    if (received.from == call_.coordinator_rank) return true;
    return received.from == kRegistrar && outcome && state_ == State::kJoining && outcome->ticket == call_.ticket;
  }
  if (leader_ != -1) return received.from == leader_;
  // This rank has promised nothing to any successor yet. So it accepts an outcome from any rank.
  if (outcome) return true;
  return received.from == candidate_ &&
         (std::holds_alternative<CoordinatorDown>(received.body) || std::holds_alternative<Begin>(received.body));
}

void RankMachine::on(const PeerDown& down) {
  if (!down.reachable) {
    down_.insert(down.rank);
    askers_.erase(down.rank);
    early_askers_.erase(down.rank);
  }
  if (!runs()) return;
  if (!down.reachable && down.rank == call_.coordinator_rank) unopened_ = down.unopened;
  if (lost_) {
    if (down.rank == leader_ || down.rank == candidate_) turn_to_next();
    return;
  }
  if (!has_coordinator() && down.rank == kRegistrar) return end_alone(no_coordinator(), Committed::kNo);
  if (down.rank != call_.coordinator_rank) return;
  if (down.reachable) return fail_to_talk(down);
  const std::string what =
      "lost touch with rank " + std::to_string(down.rank) + ", which coordinates the " + describe_call() + ": " + down.why;
  lose_coordinator(failure_of(down.rank, down.kind, down.code, "link", what), !down.unopened);
}

// Messages were lost in both directions. The coordinator counts this rank as lost, or has not heard
// of its call.
void RankMachine::lose_links(Failure failure) {
  askers_.clear();
  early_askers_.clear();
  if (!has_coordinator() || call_.coordinator_rank == identity_.rank) return;  // its coordinator ends the call
  if (!lost_) return lose_coordinator(std::move(failure));
  if (candidate_ != identity_.rank && leader_ != identity_.rank) turn_to_next();
}

// A message to the coordinator could not be sent, or a message of the coordinator could not be
// read. This is a failure of this rank that all ranks must learn.
void RankMachine::fail_to_talk(const PeerDown& down) {
  const FailureKind kind = down.code == ErrorCode::kCorrupt ? FailureKind::kLost : FailureKind::kRaised;
  // Leaves out the checkpoint id, which may be the part that is too long.
  Failure failure = failure_of(identity_.rank, kind, down.code, "link",
                               "rank " + std::to_string(identity_.rank) + " and its coordinator, rank " +
                                   std::to_string(down.rank) + ", cannot talk: " + down.why);
  if (state_ == State::kJoining || own_failure_) {
    send(Cancel{call_.ticket, failure});
    return end_alone(std::move(failure), committed_unheard());
  }
  own_failure_ = failure;
  if (!has_task_running()) return report(std::move(failure));
  stop_tasks();
}

// --- choosing a successor ------------------------------------------------------------------------

void RankMachine::lose_coordinator(Failure failure, bool may_be_back) {
  lost_ = std::move(failure);
  candidate_ = leader_ = -1;
  tried_.clear();
  if (!may_be_back) tried_.insert(call_.coordinator_rank);
  turns_ = rounds_ = 0;
  turn(CallTurn::kCoordinatorLost);
  turn_to_next();
}

// First choice is a rank that has asked: it already succeeds the coordinator. Second is the
// coordinator itself, if only the connection broke. Then come the next ranks in order, up to this
// rank. All of this repeats a few times. A rank that cannot join asks others before itself, because
// they may reach the coordinator.
void RankMachine::turn_to_next() {
  const int coordinator = call_.coordinator_rank;
  const int world_size = identity_.world_size;
  candidate_ = leader_ = -1;
  if (++turns_ > kTurnsMax) return end_alone(*lost_, committed_unheard());
  for (int distance = 1; distance < world_size; ++distance) {
    const int rank = (coordinator + distance) % world_size;
    if (askers_.count(rank) != 0) return follow(rank);
  }
  const bool may_be_back = lost_->kind == FailureKind::kLost || lost_->rank == identity_.rank;
  if (may_be_back && tried_.empty() && coordinator != identity_.rank) return request_takeover_by(coordinator);
  unsigned asked = 0;
  for (int distance = 1; distance < world_size; ++distance) {
    const int rank = (coordinator + distance) % world_size;
    if (rank == identity_.rank) {
      if (cannot_join()) continue;
      break;
    }
    if (tried_.count(rank) != 0) ++asked;
    if (asked >= options_.successors_asked) break;
    if (down_.count(rank) == 0 && tried_.count(rank) == 0) return request_takeover_by(rank);
  }
  if (tried_.count(identity_.rank) == 0) return request_takeover_by(identity_.rank);
  // Every rank names another one, so their knowledge is out of date: wait for it to change.
  if (++rounds_ > kRoundsMax) return end_alone(*lost_, committed_unheard());
  tried_.clear();
  turns_ = 0;
  effects_.emplace_back(StartTimer{Timer::kAnswer, 2 * options_.heartbeat_timeout});
}

void RankMachine::request_takeover_by(int rank) {
  candidate_ = rank;
  leader_ = -1;
  tried_.insert(rank);
  if (rank == call_.coordinator_rank && counter_ == 0) join();
  effects_.emplace_back(Send{rank, counter_, status_reply(RankStatus::kOrphaned, 0)});
  effects_.emplace_back(StartTimer{Timer::kAnswer, 2 * options_.heartbeat_timeout});
}

// From now on only the outcome of `rank` counts.
void RankMachine::follow(int rank) {
  leader_ = rank;
  candidate_ = -1;
  for (const auto& [asker, inquiry] : askers_) send_status(asker);
  // A successor repeats its question while it waits, so the timer covers only the later steps: the
  // graces and the store.
  effects_.emplace_back(StartTimer{
      Timer::kAnswer, 4 * options_.heartbeat_timeout + options_.phase_grace + 2 * options_.cancel_grace + options_.outcome_grace});
}

// The coordinator is alive. It counts this rank as lost, but will send it the outcome.
void RankMachine::return_to_coordinator() {
  lost_.reset();
  candidate_ = -1;
  turn(CallTurn::kCoordinatorFound);
  for (const auto& [asker, inquiry] : askers_) send_status(asker);
  if (report_) send_report();
  wait_for_coordinator(options_.join_deadline + 2 * options_.phase_deadline);
}

// --- messages of a successor ---------------------------------------------------------------------

// Returns whether the question is about the running call. One rank may already be in the next call
// while another waits for the outcome of the last. So if a counter is missing, the calls themselves
// are compared.
bool RankMachine::is_in(std::uint64_t counter, const StatusRequest& ask) const {
  if (call_.coordinator_rank != ask.coordinator_rank) return false;
  if (counter_ != 0 && counter != 0) return counter_ == counter;
  return is_same_call(call_, ask);
}

void RankMachine::receive(int from, std::uint64_t counter, const StatusRequest& ask) {
  if (ask.inquiry == 0) {
    if (!runs() || !lost_ || candidate_ != from || from != call_.coordinator_rank) return ignore("answer to no request");
    return return_to_coordinator();
  }
  const EndedCall* ended = find_ended(counter, ask);
  if (runs() && is_in(counter, ask) && !(ended && counter_ == 0 && counter != 0)) {
    // A coordinator that only asks whether the rank is alive needs no further messages.
    if (!lost_ && from == call_.coordinator_rank) {
      effects_.emplace_back(Send{from, counter_, status_reply(RankStatus::kAttached, ask.inquiry)});
      return;
    }
    askers_.insert_or_assign(from, ask.inquiry);
    // The coordinator was fenced and asks for the outcome that this rank gets. It does not end the
    // call any more.
    if (lost_ && counter_ != 0 && ask.inquiry >= kProbesFrom) {
      effects_.emplace_back(Send{from, counter_, status_reply(RankStatus::kOrphaned, ask.inquiry)});
      return;
    }
    if (lost_ && (leader_ == -1 || leader_ == from)) return follow(from);
    return send_status(from);
  }
  StatusReply answer;
  answer.inquiry = ask.inquiry;
  answer.coordinator_rank = ask.coordinator_rank;
  if (ended) {
    answer.kind = RankStatus::kEnded;
    answer.ticket = ended->join.ticket;
    answer.ending = ended->ending;
  } else if (counter == 0 && from != ask.coordinator_rank) {
    early_askers_.insert_or_assign(from, ask);
  }
  effects_.emplace_back(Send{from, ended ? ended->counter : 0, std::move(answer)});
}

void RankMachine::receive(int from, const FollowOther& other) {
  if (!lost_ || (from != leader_ && from != candidate_)) return ignore("FollowOther of a rank that nobody follows");
  askers_.erase(from);
  if (other.leader == call_.coordinator_rank && ++turns_ <= kTurnsMax) return request_takeover_by(other.leader);
  const bool other_is_new = other.leader >= 0 && other.leader < identity_.world_size && other.leader != from &&
                            other.leader != call_.coordinator_rank && tried_.count(other.leader) == 0 &&
                            askers_.count(other.leader) == 0 && down_.count(other.leader) == 0;
  if (other_is_new && ++turns_ <= kTurnsMax) return request_takeover_by(other.leader);
  turn_to_next();
}

// --- answers of this rank ------------------------------------------------------------------------

bool RankMachine::cannot_join() const { return unopened_ && counter_ == 0 && down_.count(call_.coordinator_rank) != 0; }

StatusReply RankMachine::status_reply(RankStatus kind, std::uint64_t inquiry) const {
  StatusReply status{call_, inquiry, kind, call_.coordinator_rank, call_.ticket};
  status.busy = has_task_running();
  status.delivered = delivered_;
  status.leader = leader_;
  if (kind == RankStatus::kOrphaned) {
    status.lost = lost_;
    status.cannot_join = cannot_join();
  }
  status.failure = own_failure_;
  return status;
}

void RankMachine::send_status(int asker) {
  RankStatus kind = RankStatus::kAttached;
  if (lost_ && leader_ != -1) kind = asker == leader_ ? RankStatus::kOrphaned : RankStatus::kPromised;
  effects_.emplace_back(Send{asker, counter_, status_reply(kind, askers_.at(asker))});
}

// A successor that was told that this rank is absent must not end the call without it.
void RankMachine::tell_early_askers() {
  for (auto asker = early_askers_.begin(); asker != early_askers_.end();) {
    const auto [rank, ask] = *asker;
    if (!is_in(0, ask)) {
      ++asker;
      continue;
    }
    askers_.insert_or_assign(rank, ask.inquiry);
    send_status(rank);
    asker = early_askers_.erase(asker);
  }
}

// Tells the ranks that wait for news of this rank. An outcome that this rank set on its own says
// nothing about the others.
void RankMachine::tell_askers_of_end(const std::shared_ptr<const Ending>& ending, bool alone) {
  for (const auto& [asker, inquiry] : askers_) {
    StatusReply answer = status_reply(alone ? RankStatus::kAbsent : RankStatus::kEnded, inquiry);
    if (!alone) answer.ending = ending;
    if (alone) {
      const FailureMap failures = ungrouped(ending->failures);  // one or two entries
      const auto own = failures.find(identity_.rank);
      if (own != failures.end()) answer.failure = own->second;
    }
    effects_.emplace_back(Send{asker, counter_, std::move(answer)});
  }
  askers_.clear();
}

void RankMachine::keep(const std::shared_ptr<const Ending>& ending, bool alone) {
  tell_askers_of_end(ending, alone);
  if (alone) return;
  ended_.push_back({counter_, call_, ending});
  if (ended_.size() > options_.outcomes_kept) ended_.pop_front();
}

const EndedCall* RankMachine::find_ended(std::uint64_t counter, const StatusRequest& ask) const {
  for (const auto& ended : ended_) {
    if (ended.join.coordinator_rank != ask.coordinator_rank) continue;
    if (counter != 0 && ended.counter != 0 ? ended.counter == counter : is_same_call(ended.join, ask)) return &ended;
  }
  return nullptr;
}

}  // namespace cairn::protocol
