// A save, from Join to Outcome: what each rank and the coordinator do, in this order.
//
// These are the steps of a save in which nothing fails and no plan is cached. The tasks that they
// run are in actors/planner_actor.cpp and actors/storage_actor.cpp. A load differs in the steps of
// load.cpp. For failures, see failure.cpp.
#include <algorithm>
#include <utility>

#include <cairn/actors/protocol/coordinator_machine.hpp>
#include <cairn/actors/protocol/rank_machine.hpp>
#include <cairn/base/save_id.hpp>

namespace cairn::protocol {

// --- 1. rank: join -------------------------------------------------------------------------------

// The registrar hears of every call, so that it notices ranks that name different coordinators.
void RankMachine::join() {
  Join join = call_;
  join.counter_seen = counter_seen_;
  join.world_size = static_cast<std::uint32_t>(identity_.world_size);
  if (call_.coordinator_rank != kRegistrar) effects_.emplace_back(Send{kRegistrar, 0, join});
  if (!has_coordinator()) return;
  send(std::move(join));
  if (own_failure_) send(Cancel{call_.ticket, *own_failure_, true});  // cancelled before the Join was delivered
}

// --- 2. coordinator: all ranks have joined, and made the same call (coordinator_joins.cpp) -------

// A new attempt gets a counter that no rank has seen, so that no late message can belong to it.
void CoordinatorMachine::begin() {
  std::set<std::string> keys;
  for (const auto& [rank, join] : joins_) {
    counter_seen_ = std::max(counter_seen_, join.counter_seen);
    keys.insert(join.stateful_keys.begin(), join.stateful_keys.end());
  }
  counter_ = ++counter_seen_;
  const auto world = static_cast<std::size_t>(identity_.world_size);
  progress_.assign(world, {});
  if (operation() == Operation::kAgree) return decide();
  local_save_plans_.assign(world, nullptr);
  local_load_plans_.assign(world, nullptr);
  metadata_save_ids_.assign(world, {});
  results_.assign(world, {});
  become(State::kLocalPlans);
  wait_for_ranks(options_.phase_deadline);
  for (const auto& [rank, join] : joins_) send(rank, Begin{join.ticket, {keys.begin(), keys.end()}});
}

// --- 3. rank: gather the state, and make the local plan ------------------------------------------

void RankMachine::receive(const Begin& begin) {
  effects_.emplace_back(StopTimer{Timer::kAnswer});
  save_id_ = make_save_id(identity_.incarnation, identity_.checkpointer, counter_);
  began_ = true;
  become(State::kPreparing);
  time_progress();
  outstanding_ = run(GatherState{begin.key_order});
}

void RankMachine::ended(const StateGathered&) { outstanding_ = run(CreateLocalPlan{}); }

// Sends only the digest of a plan that the coordinator said it keeps.
void RankMachine::ended(const LocalSavePlan& made) {
  local_plan_ = made.plan;
  local_digest_ = made.digest;
  const auto kept = kept_by_coordinator_.find(call_.coordinator_rank);
  if (kept == kept_by_coordinator_.end() || kept->second != made.digest) return report_end_of_phase(State::kPlanned, made);
  auto content = content_of(*made.plan);
  report_end_of_phase(State::kPlanned, SameSavePlan{made.digest, std::move(content.hashes), std::move(content.bytes)});
}

// --- 4. coordinator: make the global plan of all local plans -------------------------------------

void CoordinatorMachine::receive(int from, const LocalSavePlan& message) {
  if (state_ != State::kLocalPlans || answered_.count(from) != 0 || operation() != Operation::kSave)
    return ignore("LocalSavePlan out of turn");
  kept_[from].local_plan = {message.digest, message.plan};
  take_local_plan(from, message.plan);
}

void CoordinatorMachine::take_local_plan(int from, std::shared_ptr<const SavePlan> plan) {
  local_save_plans_[static_cast<std::size_t>(from)] = std::move(plan);
  answered(from);
}

void CoordinatorMachine::answered(int from) {
  answered_.insert(from);
  end_phase_if_complete();
}

void CoordinatorMachine::end_phase_if_complete() {
  if (!collects() || answered_.size() < joins_.size()) return;
  if (!outcome_.failures.empty()) return end(std::exchange(outcome_.failures, {}), Committed::kNo);
  if (state_ == State::kLocalPlans) return operation() == Operation::kSave ? plan_globally() : plan_load_globally();
  if (operation() == Operation::kSave) return publish();
  end({}, Committed::kNo);
}

// Planning a million items takes a second, and most saves of a trainer plan what the last one did.
void CoordinatorMachine::plan_globally() {
  become(State::kGlobalPlan);
  start_timer(options_.phase_deadline);
  DigestBuilder digest;
  for (const auto& [rank, join] : joins_) digest.add(to_hex(kept_[rank].local_plan.digest));
  const Digest of = digest.finish();
  run(CreateGlobalSavePlan{local_save_plans_, of, last_global_ && last_global_->of == of ? last_global_ : nullptr});
}

void CoordinatorMachine::ended(const GlobalSavePlans& made) {
  if (!outcome_.failures.empty()) return end(std::exchange(outcome_.failures, {}), Committed::kNo);  // cancelled meanwhile
  metadata_ = made.metadata;
  last_global_ = made.all;
  start_moving();
  for (const auto& [rank, join] : joins_) {
    const auto& part = last_global_->parts[static_cast<std::size_t>(rank)];
    send(rank, GlobalSavePlan{part ? nullptr : last_global_->plans[static_cast<std::size_t>(rank)], part});
  }
}

void CoordinatorMachine::start_moving() {
  answered_.clear();
  become(State::kMoving);
  wait_for_ranks(options_.phase_deadline);
}

// --- 5. rank: write the data ---------------------------------------------------------------------

void RankMachine::receive(const GlobalSavePlan& message) {
  if (state_ != State::kPlanned || call_.operation != Operation::kSave) return ignore("GlobalSavePlan out of turn");
  auto plan = message.plan;
  if (message.part)
    if (auto made = plan_of_part(*local_plan_, *message.part)) plan = std::make_shared<const SavePlan>(*std::move(made));
  if (!plan) {
    PeerDown unreadable;
    unreadable.rank = call_.coordinator_rank;
    unreadable.code = ErrorCode::kCorrupt;
    unreadable.why = "its GlobalSavePlan is not of this rank's local plan";
    return fail_to_talk(unreadable);
  }
  kept_by_coordinator_[call_.coordinator_rank] = local_digest_;
  effects_.emplace_back(StopTimer{Timer::kAnswer});
  become(State::kMoving);
  outstanding_ = run(Write{std::move(plan)});
}

void RankMachine::ended(const Written& written) { report_end_of_phase(State::kReported, written); }

// --- 6. coordinator: publish the checkpoint ------------------------------------------------------

void CoordinatorMachine::receive(int from, const Written& message) {
  if (state_ != State::kMoving || answered_.count(from) != 0 || operation() != Operation::kSave)
    return ignore("Written out of turn");
  results_[static_cast<std::size_t>(from)] = *message.results;
  answered(from);
}

void CoordinatorMachine::publish() {
  become(State::kFinishing);
  // The plan cache keeps what the next save may have again.
  local_save_plans_.clear();
  start_timer(options_.phase_deadline);
  run(Finish{metadata_, std::make_shared<std::vector<WriteResults>>(std::move(results_))});
}

// Ranks that gave up on this one may have ended the call without it. Then their outcome counts.
void CoordinatorMachine::ended(const Published&) {
  if (given_up_) return settle(true, Committed::kYes);
  end({}, Committed::kYes);
}

// --- 7. coordinator: tell all ranks the outcome --------------------------------------------------

// The same map goes to all ranks. It is encoded once.
void CoordinatorMachine::end(const FailureMap& failures, Committed committed) {
  const auto own = failures.find(identity_.rank);
  end(make_ending(failures, committed, save_id_of(counter_)), own == failures.end() ? nullptr : own->second.exception);
}

// `own_exception` is the exception of this rank's own failure; may be null.
void CoordinatorMachine::end(std::shared_ptr<const Ending> ending, const std::exception_ptr& own_exception) {
  // Failures to send or read a message have failed this call, and must not fail the next.
  for (auto it = down_.begin(); it != down_.end();) it = it->second.reachable ? down_.erase(it) : std::next(it);
  const auto tell = [&](int rank, const Join& join) {
    kept_[rank].ended_ticket = std::max(kept_[rank].ended_ticket, join.ticket);
    if (left_.count(rank) != 0 || down_.count(rank) != 0) return;
    send(rank, Outcome{join.ticket, ending, rank == identity_.rank ? own_exception : nullptr});
  };
  // The own rank is told last: its call may return and its trainer exit, so the other outcomes must
  // be on their way.
  for (const auto& [rank, join] : joins_)
    if (rank != identity_.rank) tell(rank, join);
  const auto own = joins_.find(identity_.rank);
  if (own != joins_.end()) tell(own->first, own->second);
  remember(ending);
  if (was_skipped()) count_skipped_call();
  forget_call();
}

// --- 8. rank: end the call -----------------------------------------------------------------------

void RankMachine::end(const Outcome& outcome, bool alone) {
  if (outcome_) return ignore("second outcome of one call");
  keep(outcome.ending, alone);
  outcome_ = outcome;
  effects_.emplace_back(StopTimer{Timer::kAnswer});
  effects_.emplace_back(StopTimer{Timer::kProgress});
  if (call_.deadline) effects_.emplace_back(StopTimer{Timer::kCall});
  // Stops the coordinator's task on this rank, too. A read may wait for ranks that have left.
  if (call_.operation == Operation::kLoad)
    stop_tasks();
  else
    effects_.emplace_back(StopTasks{});
  if (!has_task_running()) release_call();
}

// After a success nothing is left to release.
void RankMachine::release_call() {
  if (!began_ || outcome_->ending->failures.empty()) return become_idle();
  release();
}

std::optional<CallResult> RankMachine::outcome_before_end() const {
  if (!outcome_ || outcome_->ending->failures.empty() || state_ == State::kEnding) return std::nullopt;
  return result_of(*outcome_->ending);
}

void RankMachine::become_idle() {
  CallResult finished = result_of(*outcome_->ending);
  restore_own_exception(finished.failures);
  outcome_.reset();
  own_failure_.reset();
  local_plan_.reset();
  report_.reset();
  lost_.reset();
  become(State::kIdle);
  effects_.emplace_back(std::move(finished));
}

}  // namespace cairn::protocol
