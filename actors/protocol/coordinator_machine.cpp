#include <cairn/actors/protocol/coordinator_machine.hpp>

#include <algorithm>
#include <utility>

#include <cairn/actors/protocol/plan_check.hpp>
#include <cairn/base/save_id.hpp>

namespace cairn::protocol {
namespace {

std::string seconds(std::chrono::milliseconds duration) {
  return std::to_string(duration.count() / 1000) + "." + std::to_string(duration.count() % 1000 / 100) + " s";
}

std::string call_of(const Join& join) {
  return std::string(to_string(join.operation)) + " of \"" + join.checkpoint_id + "\" (its call " + std::to_string(join.ordinal) +
         ")";
}

}  // namespace

const char* to_string(CoordinatorMachine::State state) noexcept {
  switch (state) {
    case CoordinatorMachine::State::kIdle:
      return "coordinator: idle";
    case CoordinatorMachine::State::kJoining:
      return "coordinator: joining";
    case CoordinatorMachine::State::kLocalPlans:
      return "coordinator: local plans";
    case CoordinatorMachine::State::kGlobalPlan:
      return "coordinator: global plan";
    case CoordinatorMachine::State::kMoving:
      return "coordinator: moving";
    case CoordinatorMachine::State::kFinishing:
      return "coordinator: finishing";
    case CoordinatorMachine::State::kSettling:
      return "coordinator: settling";
  }
  return "coordinator: unknown state";
}

CoordinatorMachine::CoordinatorMachine(Identity identity, const RuntimeOptions& options)
    : identity_(std::move(identity)), options_(options) {}

Effects CoordinatorMachine::step(const Event& event) {
  effects_.clear();
  std::visit([this](const auto& it) { on(it); }, event);
  return std::exchange(effects_, {});
}

// --- joining ----------------------------------------------------------------------------------------------------------------

void CoordinatorMachine::on(const Received& received) {
  const int from = received.from;
  if (from < 0 || from >= identity_.world_size) return ignore("message of a rank outside the world");
  // Join and Cancel name the call by its ticket; all others belong to the attempt.
  const bool names_call = std::holds_alternative<Join>(received.body) || std::holds_alternative<Cancel>(received.body);
  if (!names_call) {
    if (!is_attempt() || received.counter != counter_) {
      for (const auto& ended : ended_) {
        if (ended.counter != received.counter || received.counter == 0 || ended.tickets.count(from) == 0) continue;
        Outcome outcome = ended.outcome;
        outcome.ticket = ended.tickets.at(from);
        effects_.push_back(Send{from, ended.counter, std::move(outcome)});
      }
      return ignore("message of another attempt");
    }
    if (gone_.count(from) != 0) return ignore("message of a rank that no longer takes part");
  }
  std::visit([&](const auto& message) { receive(from, message); }, received.body);
}

void CoordinatorMachine::receive(int from, const Join& join) {
  down_.erase(from);
  if (join.ticket <= kept_[from].ended_ticket) return ignore("Join of a call that has ended");
  if (answer_missed(from, join)) return;
  if (!is_attempt()) {
    const auto known = joins_.find(from);
    if (known != joins_.end() && known->second.ticket >= join.ticket) return ignore("second Join of one call");
    joins_.insert_or_assign(from, join);
    if (state_ == State::kIdle) {
      become(State::kJoining);
      start_timer(options_.join_deadline);
    }
    return join_if_complete();
  }
  const auto member = joins_.find(from);
  if (member != joins_.end() && member->second.ticket >= join.ticket) return ignore("second Join of one call");
  next_joins_.insert_or_assign(from, join);
  // It has left this attempt, without a word.
  if (!gone_.insert(from).second) return;
  fail(from, failure_of(from, FailureKind::kInternal, ErrorCode::kInternal, "coordinator",
                        "rank " + std::to_string(from) + " started another call before this one had ended"));
}

bool CoordinatorMachine::answer_missed(int from, const Join& join) {
  for (auto& missed : missed_) {
    if (missed.join.operation != join.operation || missed.join.checkpoint_id != join.checkpoint_id ||
        missed.ordinals.count(join.ordinal) == 0 || missed.absent.erase(from) == 0)
      continue;
    Outcome outcome = missed.outcome;
    outcome.ticket = join.ticket;
    kept_[from].ended_ticket = join.ticket;
    effects_.push_back(Send{from, 0, std::move(outcome)});
    return true;
  }
  return false;
}

void CoordinatorMachine::join_if_complete() {
  if (joins_.count(identity_.rank) == 0) return;
  std::size_t lost = 0;
  for (const auto& [rank, down] : down_) lost += joins_.count(rank) == 0 ? 1 : 0;
  if (joins_.size() + lost < static_cast<std::size_t>(identity_.world_size)) return;
  FailureMap failures = judge_joins();
  if (failures.empty())
    begin();
  else
    end(std::move(failures), Committed::kNo);
}

// Ranks that are not there, and ranks whose call differs from the coordinator's own.
FailureMap CoordinatorMachine::judge_joins() const {
  FailureMap failures;
  for (const auto& [rank, down] : down_) {
    if (joins_.count(rank) != 0) continue;
    failures.emplace(rank, failure_of(rank, down.kind, down.code, "link",
                                      "lost the connection to rank " + std::to_string(rank) + " before it joined: " + down.why));
  }
  const Join& own = own_join();
  const std::string self = "rank " + std::to_string(identity_.rank);
  for (const auto& [rank, join] : joins_) {
    const std::string other = "rank " + std::to_string(rank);
    std::string what;
    if (join.operation != own.operation || join.checkpoint_id != own.checkpoint_id)
      what = other + " called " + call_of(join) + ", where " + self + " called " + call_of(own) +
             "; all ranks of a checkpointer must make the same calls in the same order";
    else if (join.world_size != own.world_size)
      what = other + " has a world of " + std::to_string(join.world_size) + " ranks, where " + self + " has one of " +
             std::to_string(own.world_size);
    else if (join.options_digest != own.options_digest)
      what = other + " called " + call_of(join) + " with options that differ from those of " + self + " (digests " +
             to_hex(join.options_digest).substr(0, 12) + " and " + to_hex(own.options_digest).substr(0, 12) +
             "); pass the same options on every rank";
    if (!what.empty())
      failures.emplace(rank, failure_of(rank, FailureKind::kRaised, ErrorCode::kMismatch, "coordinator", std::move(what)));
  }
  return failures;
}

void CoordinatorMachine::begin() {
  std::set<std::string> keys;
  for (const auto& [rank, join] : joins_) {
    counter_seen_ = std::max(counter_seen_, join.counter_seen);
    keys.insert(join.stateful_keys.begin(), join.stateful_keys.end());
  }
  counter_ = ++counter_seen_;
  const auto world = static_cast<std::size_t>(identity_.world_size);
  local_save_plans_.assign(world, nullptr);
  local_load_plans_.assign(world, nullptr);
  metadata_save_ids_.assign(world, {});
  results_.assign(world, {});
  become(State::kLocalPlans);
  start_timer(options_.phase_deadline);
  for (const auto& [rank, join] : joins_) send(rank, Begin{join.ticket, {keys.begin(), keys.end()}});
}

// --- local plans ------------------------------------------------------------------------------------------------------------

void CoordinatorMachine::receive(int from, const LocalSavePlan& message) {
  if (state_ != State::kLocalPlans || answered_.count(from) != 0 || operation() != Operation::kSave)
    return ignore("LocalSavePlan out of turn");
  kept_[from].local_plans.add(message.digest, message.plan);
  take_local_plan(from, message.plan);
}

void CoordinatorMachine::receive(int from, const SameSavePlan& message) {
  if (state_ != State::kLocalPlans || answered_.count(from) != 0 || operation() != Operation::kSave)
    return ignore("SameSavePlan out of turn");
  auto plan = kept_[from].local_plans.find(message.digest);
  if (plan) plan = refreshed(std::move(plan), message.content_hashes, message.content_bytes);
  if (!plan) return send(from, NeedLocalPlan{message.digest});
  kept_[from].local_plans.add(message.digest, plan);
  take_local_plan(from, std::move(plan));
}

void CoordinatorMachine::take_local_plan(int from, std::shared_ptr<const SavePlan> plan) {
  local_save_plans_[static_cast<std::size_t>(from)] = std::move(plan);
  answered(from);
}

void CoordinatorMachine::receive(int from, const LocalLoadPlan& message) {
  if (state_ != State::kLocalPlans || answered_.count(from) != 0 || operation() != Operation::kLoad)
    return ignore("LocalLoadPlan out of turn");
  local_load_plans_[static_cast<std::size_t>(from)] = message.plan;
  metadata_save_ids_[static_cast<std::size_t>(from)] = message.metadata_save_id;
  answered(from);
}

// --- moving data ------------------------------------------------------------------------------------------------------------

void CoordinatorMachine::receive(int from, const NeedGlobalPlan& message) {
  if (state_ != State::kMoving || answered_.count(from) != 0 || operation() != Operation::kSave ||
      global_digests_[static_cast<std::size_t>(from)] != message.digest)
    return ignore("NeedGlobalPlan out of turn");
  kept_[from].global_plans.remove(message.digest);
  send_global_plan(from);
}

void CoordinatorMachine::receive(int from, const Written& message) {
  if (state_ != State::kMoving || answered_.count(from) != 0 || operation() != Operation::kSave)
    return ignore("Written out of turn");
  results_[static_cast<std::size_t>(from)] = *message.results;
  answered(from);
}

void CoordinatorMachine::receive(int from, const ReadDone&) {
  if (state_ != State::kMoving || answered_.count(from) != 0 || operation() != Operation::kLoad)
    return ignore("ReadDone out of turn");
  answered(from);
}

void CoordinatorMachine::receive(int from, const PhaseFailed& message) {
  Failure failure = message.failure;
  failure.rank = from;
  fail(from, std::move(failure));
}

void CoordinatorMachine::receive(int from, const Cancel& message) {
  kept_[from].ended_ticket = std::max(kept_[from].ended_ticket, message.ticket);
  const auto next = next_joins_.find(from);
  if (next != next_joins_.end() && next->second.ticket <= message.ticket) next_joins_.erase(next);
  const auto member = joins_.find(from);
  if (member == joins_.end() || member->second.ticket != message.ticket) return ignore("Cancel of another call");
  Failure failure = message.failure;
  failure.rank = from;
  gone_.insert(from);
  if (is_attempt()) return fail(from, std::move(failure));
  FailureMap failures;
  failures.emplace(from, std::move(failure));
  end(std::move(failures), Committed::kNo);  // the others would wait in vain
}

// --- phases -----------------------------------------------------------------------------------------------------------------

void CoordinatorMachine::answered(int from) {
  answered_.insert(from);
  end_phase_if_complete();
}

void CoordinatorMachine::fail(int rank, Failure failure) {
  const bool delivered = (state_ == State::kMoving && answered_.count(rank) != 0 && failures_.count(rank) == 0) ||
                         state_ == State::kFinishing || state_ == State::kSettling;
  if (delivered) return ignore("failure of a rank that has done its part");
  failures_.emplace(rank, std::move(failure));  // the first one counts
  answered_.insert(rank);
  end_phase_if_complete();
}

void CoordinatorMachine::end_phase_if_complete() {
  if (!collects() || answered_.size() < joins_.size()) return;
  if (!failures_.empty()) return end(std::exchange(failures_, {}), Committed::kNo);
  if (state_ == State::kLocalPlans) return plan_globally();
  if (operation() == Operation::kSave) return finish();
  end({}, Committed::kNo);
}

void CoordinatorMachine::plan_globally() {
  if (operation() == Operation::kLoad) {
    const bool agree = std::all_of(metadata_save_ids_.begin(), metadata_save_ids_.end(),
                                   [&](const std::string& id) { return id == metadata_save_ids_.front(); });
    if (!agree) {
      FailureMap failures;
      for (int rank = 0; rank < identity_.world_size; ++rank)
        failures.emplace(rank, failure_of(rank, FailureKind::kRaised, ErrorCode::kChanged, "coordinator",
                                          "the checkpoint was replaced while the ranks opened it: rank " + std::to_string(rank) +
                                              " has read the metadata of save \"" +
                                              metadata_save_ids_[static_cast<std::size_t>(rank)] + "\"; load again"));
      return end(std::move(failures), Committed::kNo);
    }
  }
  become(State::kGlobalPlan);
  start_timer(options_.phase_deadline);
  if (operation() == Operation::kSave) {
    auto plans = std::make_shared<std::vector<SavePlan>>();
    plans->reserve(local_save_plans_.size());
    for (const auto& plan : local_save_plans_) plans->push_back(*plan);
    run(Hook::kCreateGlobalPlan, Phase::kGlobalPlan, std::move(plans));
  } else {
    auto plans = std::make_shared<std::vector<LoadPlan>>();
    plans->reserve(local_load_plans_.size());
    for (const auto& plan : local_load_plans_) plans->push_back(*plan);
    run(Hook::kCreateGlobalPlan, Phase::kGlobalPlan, std::move(plans));
  }
}

void CoordinatorMachine::on(const HookDone& done) {
  if (outstanding_ == 0 || done.sequence != outstanding_) return ignore("end of a hook that is not running");
  outstanding_ = 0;
  const auto* failure = std::get_if<Failure>(&done.result);

  if (hook_ == Hook::kAskCommitted) {
    const auto* answer = failure ? nullptr : std::get_if<Committed>(&std::get<HookValue>(done.result));
    return end(std::exchange(failures_, {}), answer ? *answer : Committed::kUnknown);
  }
  if (failure) failures_.insert_or_assign(identity_.rank, *failure);
  if (hook_ == Hook::kFinish) {
    if (failures_.empty()) return end({}, Committed::kYes);
    become(State::kSettling);
    start_timer(options_.cancel_grace);
    return run(Hook::kAskCommitted, Phase::kFinish, {});
  }
  if (!failures_.empty()) return end(std::exchange(failures_, {}), Committed::kNo);

  try {
    take_global_plan(std::get<HookValue>(done.result));
  } catch (const Error& error) {  // plans that contradict themselves
    if (error.code() == ErrorCode::kInternal) throw;
    FailureMap failures;
    failures.emplace(identity_.rank,
                     capture_failure(identity_.rank, Phase::kGlobalPlan, actor_of(hook_), std::current_exception()));
    end(std::move(failures), Committed::kNo);
  }
}

void CoordinatorMachine::take_global_plan(const HookValue& value) {
  const char* hook = name_of(hook_, operation());
  const auto check_count = [&](std::size_t count) {
    if (count == static_cast<std::size_t>(identity_.world_size)) return;
    throw Error(ErrorCode::kMismatch, std::string(hook) + " returned " + std::to_string(count) + " plans for " +
                                          std::to_string(identity_.world_size) + " ranks; it must return one plan per rank");
  };
  if (operation() == Operation::kLoad) {
    const auto& plans = std::get<std::shared_ptr<std::vector<LoadPlan>>>(value);
    check_count(plans->size());
    if (hook_ == Hook::kCreateGlobalPlan) return run(Hook::kPrepareGlobalPlan, Phase::kGlobalPlan, plans);
    for (const auto& plan : *plans) check_plan(plan, hook);
    return spread_load_plans(*plans);
  }
  if (hook_ == Hook::kCreateGlobalPlan) {
    const auto& plan = std::get<std::shared_ptr<cairn::GlobalSavePlan>>(value);
    check_count(plan->plans.size());
    metadata_ = std::make_shared<Metadata>(std::move(plan->metadata));
    return run(Hook::kPrepareGlobalPlan, Phase::kGlobalPlan, std::make_shared<std::vector<SavePlan>>(std::move(plan->plans)));
  }
  auto& plans = *std::get<std::shared_ptr<std::vector<SavePlan>>>(value);
  check_count(plans.size());
  for (const auto& plan : plans) check_plan(plan, hook);
  spread_save_plans(plans);
}

void CoordinatorMachine::start_moving() {
  become(State::kMoving);
  answered_.clear();
  start_timer(options_.phase_deadline);
}

void CoordinatorMachine::spread_load_plans(std::vector<LoadPlan>& plans) {
  start_moving();
  for (const auto& [rank, join] : joins_)
    send(rank, GlobalLoadPlan{std::make_shared<const LoadPlan>(std::move(plans[static_cast<std::size_t>(rank)]))});
}

void CoordinatorMachine::spread_save_plans(std::vector<SavePlan>& plans) {
  global_save_plans_.clear();
  global_digests_.clear();
  for (auto& plan : plans) {
    global_digests_.push_back(plan_digest(plan));
    global_save_plans_.push_back(std::make_shared<const SavePlan>(std::move(plan)));
  }
  start_moving();
  for (const auto& [rank, join] : joins_) {
    const Digest& digest = global_digests_[static_cast<std::size_t>(rank)];
    if (kept_[rank].global_plans.contains(digest))
      send(rank, UseCachedPlan{digest, true});
    else
      send_global_plan(rank);
  }
}

void CoordinatorMachine::send_global_plan(int rank) {
  const auto index = static_cast<std::size_t>(rank);
  kept_[rank].global_plans.add(global_digests_[index]);
  send(rank, GlobalSavePlan{global_save_plans_[index], global_digests_[index], true});
}

void CoordinatorMachine::finish() {
  become(State::kFinishing);
  start_timer(options_.phase_deadline);
  run(Hook::kFinish, Phase::kFinish, FinishArguments{metadata_, std::make_shared<std::vector<WriteResults>>(std::move(results_))});
}

// --- deadlines, losses, cancellation ----------------------------------------------------------------------------------------

void CoordinatorMachine::on(const TimerFired& fired) {
  if (fired.timer != Timer::kPhase || state_ == State::kIdle) return ignore("timer that was stopped");
  const auto silent = [&](int rank, std::string what) {
    return failure_of(rank, FailureKind::kSilent, ErrorCode::kDeadline, "coordinator", std::move(what));
  };
  FailureMap failures = std::exchange(failures_, {});
  if (state_ == State::kJoining) {
    std::set<int> present;
    for (const auto& [rank, join] : joins_) present.insert(rank);
    const std::string call = call_of(joins_.begin()->second);
    for (int rank = 0; rank < identity_.world_size; ++rank)
      if (joins_.count(rank) == 0)
        failures.emplace(rank, silent(rank, "rank " + std::to_string(rank) + " did not join the " + call + " by checkpointer \"" +
                                                identity_.checkpointer + "\" within " + seconds(options_.join_deadline) + "; " +
                                                list_of_ranks(present) + " did"));
    return end(std::move(failures), Committed::kNo);
  }
  if (collects()) {
    for (const auto& [rank, join] : joins_)
      if (answered_.count(rank) == 0)
        failures.emplace(rank, silent(rank, "rank " + std::to_string(rank) + " did not end its " + to_string(phase()) +
                                                " phase within " + seconds(options_.phase_deadline)));
    return end(std::move(failures), Committed::kNo);
  }
  // A hook of this rank's own: user code that cannot be interrupted.
  failures.emplace(identity_.rank, silent(identity_.rank, std::string(name_of(hook_, operation())) + " had not ended within " +
                                                              seconds(options_.phase_deadline)));
  const bool may_exist = state_ == State::kFinishing || state_ == State::kSettling;
  end(std::move(failures), may_exist ? Committed::kUnknown : Committed::kNo);
}

void CoordinatorMachine::on(const PeerDown& down) {
  if (down.rank == identity_.rank) return;
  const auto failure = [&] {
    return failure_of(down.rank, down.kind, down.code, "link",
                      "lost touch with rank " + std::to_string(down.rank) + ": " + down.why);
  };
  if (down.reachable) {
    if (is_attempt() && gone_.count(down.rank) == 0) return fail(down.rank, failure());
    if (state_ != State::kJoining) return;
    FailureMap failures;
    failures.emplace(down.rank, failure());
    return end(std::move(failures), Committed::kNo);
  }
  down_.insert_or_assign(down.rank, down);
  next_joins_.erase(down.rank);
  if (state_ == State::kJoining) {
    joins_.erase(down.rank);
    if (!joins_.empty()) return join_if_complete();
    effects_.push_back(StopTimer{Timer::kPhase});
    return become(State::kIdle);
  }
  if (!is_attempt() || gone_.count(down.rank) != 0) return;
  gone_.insert(down.rank);
  fail(down.rank, failure());
}

void CoordinatorMachine::on(const PeerUp& up) { down_.erase(up.rank); }

void CoordinatorMachine::on(const Cancelled& cancelled) {
  if (state_ == State::kIdle) return;
  FailureMap failures = std::exchange(failures_, {});
  failures.emplace(identity_.rank,
                   failure_of(identity_.rank, FailureKind::kCancelled, ErrorCode::kCancelled, "supervisor", cancelled.why));
  const bool may_exist = state_ == State::kFinishing || state_ == State::kSettling;
  end(std::move(failures), may_exist ? Committed::kUnknown : Committed::kNo);
}

void CoordinatorMachine::end(FailureMap failures, Committed committed) {
  Outcome outcome;
  outcome.failures = std::move(failures);
  outcome.committed = committed;
  if (counter_ != 0) outcome.save_id = make_save_id(identity_.incarnation, identity_.checkpointer, counter_);
  const auto tell = [&](int rank, const Join& join) {
    kept_[rank].ended_ticket = std::max(kept_[rank].ended_ticket, join.ticket);
    if (gone_.count(rank) != 0 || down_.count(rank) != 0) return;
    outcome.ticket = join.ticket;
    send(rank, outcome);
  };
  // The own rank's last: when its call returns, and its trainer perhaps leaves, the others' outcomes are on their way.
  for (const auto& [rank, join] : joins_)
    if (rank != identity_.rank) tell(rank, join);
  const auto own = joins_.find(identity_.rank);
  if (own != joins_.end()) tell(own->first, own->second);
  effects_.push_back(StopTimer{Timer::kPhase});
  remember(outcome);
  counter_ = 0;
  outstanding_ = 0;
  joins_.clear();
  failures_.clear();
  answered_.clear();
  gone_.clear();
  local_save_plans_.clear();
  local_load_plans_.clear();
  metadata_save_ids_.clear();
  global_save_plans_.clear();
  global_digests_.clear();
  metadata_.reset();
  results_.clear();
  become(State::kIdle);
  restart_joins();
}

// For those who still speak of this attempt, and for those who have not joined this call yet.
void CoordinatorMachine::remember(const Outcome& outcome) {
  if (counter_ != 0) {
    Ended ended{counter_, {}, outcome};
    for (auto& [rank, failure] : ended.outcome.failures) failure.exception = nullptr;
    for (const auto& [rank, join] : joins_) ended.tickets.emplace(rank, join.ticket);
    ended_.push_back(std::move(ended));
    if (ended_.size() > options_.outcomes_kept) ended_.pop_front();
    return;
  }
  Missed missed{joins_.begin()->second, {}, {}, outcome};
  for (const auto& [rank, join] : joins_) missed.ordinals.insert(join.ordinal);
  for (int rank = 0; rank < identity_.world_size; ++rank)
    if (joins_.count(rank) == 0) missed.absent.insert(rank);
  if (missed.absent.empty()) return;
  missed_.push_back(std::move(missed));
  if (missed_.size() > options_.outcomes_kept) missed_.pop_front();
}

void CoordinatorMachine::restart_joins() {
  for (auto& [rank, join] : std::exchange(next_joins_, {}))
    if (down_.count(rank) == 0) receive(rank, join);
}

// --- small ones -------------------------------------------------------------------------------------------------------------

const Join& CoordinatorMachine::own_join() const {
  const auto own = joins_.find(identity_.rank);
  check_invariant(own != joins_.end(), "a coordinator's own rank has not joined the attempt");
  return own->second;
}

Failure CoordinatorMachine::failure_of(int rank, FailureKind kind, ErrorCode code, const char* actor, std::string what) const {
  Failure failure;
  failure.rank = rank;
  failure.phase = phase();
  failure.kind = kind;
  failure.code = code;
  failure.what = std::move(what);
  failure.actor = actor;
  return failure;
}

Phase CoordinatorMachine::phase() const {
  switch (state_) {
    case State::kIdle:
    case State::kJoining:
      return Phase::kJoin;
    case State::kLocalPlans:
      return Phase::kLocalPlan;
    case State::kGlobalPlan:
      return Phase::kGlobalPlan;
    case State::kMoving:
      return operation() == Operation::kSave ? Phase::kWrite : Phase::kRead;
    case State::kFinishing:
    case State::kSettling:
      return Phase::kFinish;
  }
  return Phase::kJoin;
}

void CoordinatorMachine::run(Hook hook, Phase phase, HookValue argument) {
  hook_ = hook;
  outstanding_ = ++sequence_;
  RunHook effect;
  effect.hook = hook;
  effect.operation = operation();
  effect.phase = phase;
  effect.sequence = outstanding_;
  effect.counter = counter_;
  effect.save_id = make_save_id(identity_.incarnation, identity_.checkpointer, counter_);
  effect.is_coordinator = true;
  effect.argument = std::move(argument);
  effects_.push_back(std::move(effect));
}

std::string CoordinatorMachine::list_of_ranks(const std::set<int>& ranks) const {
  if (ranks.empty()) return "no rank";
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  bool first = true;
  for (auto it = ranks.begin(); it != ranks.end();) {
    const int from = *it;
    int to = from;
    for (++it; it != ranks.end() && *it == to + 1; ++it) to = *it;
    text += (first ? "" : ", ") + std::to_string(from) + (to > from ? "-" + std::to_string(to) : "");
    first = false;
  }
  return text;
}

void CoordinatorMachine::become(State state) {
  state_ = state;
  effects_.push_back(Note{to_string(state), true});
}

void CoordinatorMachine::send(int to, Message body) { effects_.push_back(Send{to, counter_, std::move(body)}); }

void CoordinatorMachine::ignore(const char* why) { effects_.push_back(Note{why, false}); }

}  // namespace cairn::protocol
