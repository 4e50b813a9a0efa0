#include <cairn/actors/protocol/coordinator_machine.hpp>

#include <algorithm>
#include <utility>

#include <cairn/actors/protocol/plan_check.hpp>
#include <cairn/base/call_phase.hpp>
#include <cairn/base/save_id.hpp>

namespace cairn::protocol {

CoordinatorMachine::CoordinatorMachine(Identity identity, const RuntimeOptions& options)
    : identity_(std::move(identity)),
      options_(options),
      counter_seen_(identity_.counter_floor),
      register_(identity_.world_size, options.outcomes_kept),
      succession_(identity_, options) {}

Effects CoordinatorMachine::step(const Event& event) {
  effects_.clear();
  std::visit([this](const auto& it) { on(it); }, event);
  return std::exchange(effects_, {});
}

// --- local plans ---------------------------------------------------------------------------------

void CoordinatorMachine::receive(int from, const LocalSavePlan& message) {
  if (state_ != State::kLocalPlans || answered_.count(from) != 0 || operation() != Operation::kSave)
    return ignore("LocalSavePlan out of turn");
  auto plan = shared_names_.share(message.plan);
  kept_[from].local_plans.add(message.digest, plan);
  take_local_plan(from, std::move(plan));
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

// --- moving data ---------------------------------------------------------------------------------

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

void CoordinatorMachine::receive(int from, const PhaseStopped&) {
  if (!collects() || !stopping_ || answered_.count(from) != 0) return ignore("PhaseStopped out of turn");
  answered(from);
}

void CoordinatorMachine::receive(int from, const Cancel& message) {
  if (message.awaits_outcome) return cancel_call(from, message);
  const bool has_ended = message.ticket <= kept_[from].ended_ticket;
  kept_[from].ended_ticket = std::max(kept_[from].ended_ticket, message.ticket);
  Failure failure = message.failure;
  failure.rank = from;
  const auto next = next_joins_.find(from);
  if (next != next_joins_.end() && next->second.ticket <= message.ticket) {
    next_joins_.erase(next);
    return;
  }
  const auto member = joins_.find(from);
  if (member == joins_.end() && !has_ended && !is_attempt()) return skip_call(from, std::move(failure));
  if (member == joins_.end() || member->second.ticket != message.ticket) return ignore("Cancel of another call");
  if (!is_attempt() && skipped_.count(from) != 0) {
    forget_join(from);
    return skip_call(from, std::move(failure));
  }
  gone_.insert(from);
  left_.insert(from);
  if (is_attempt()) return fail(from, std::move(failure));
  end(FailureMap{{from, std::move(failure)}}, Committed::kNo);
}

// --- phases --------------------------------------------------------------------------------------

void CoordinatorMachine::answered(int from) {
  answered_.insert(from);
  count_progress(from);
  end_phase_if_complete();
}

void CoordinatorMachine::fail(int rank, Failure failure) {
  const bool delivered = (state_ == State::kMoving && answered_.count(rank) != 0 && failures_.count(rank) == 0) ||
                         state_ == State::kFinishing || state_ == State::kSettling;
  if (delivered) return ignore("failure of a rank that has done its part");
  failures_.emplace(rank, std::move(failure));  // the first one counts
  answered_.insert(rank);
  count_progress(rank);
  end_phase_if_complete();
  hurry();
}

// Shortens the time for the other ranks to end their phase after a failure.
void CoordinatorMachine::hurry() {
  if (!collects() || failures_.empty() || std::exchange(hurried_, true)) return;
  start_timer(options_.phase_grace);
}

// Tells the ranks that are still in the phase.
void CoordinatorMachine::tell_to_stop() {
  hurried_ = stopping_ = true;
  start_timer(options_.cancel_grace);
  if (!collects()) return;
  for (const auto& [rank, join] : joins_)
    if (answered_.count(rank) == 0 && failures_.count(rank) == 0) send(rank, StopPhase{});
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
                                              metadata_save_ids_[static_cast<std::size_t>(rank)] +
                                              "\"; load again, and see whether all ranks share the directory"));
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
  if (succession_.awaits(done)) return append(succession_.on(done));
  if (outstanding_ == 0 || done.sequence != outstanding_) return ignore("end of a hook that is not running");
  outstanding_ = 0;
  const auto* failure = std::get_if<Failure>(&done.result);

  if (hook_ == Hook::kAskCommitted) {
    const auto* answer = failure ? nullptr : std::get_if<Committed>(&std::get<HookValue>(done.result));
    settled_ = answer ? *answer : Committed::kUnknown;
    return end_settling_if_complete();
  }
  if (failure) failures_.insert_or_assign(identity_.rank, *failure);
  if (hook_ == Hook::kFinish) {
    if (!failures_.empty()) return settle(failure->code == ErrorCode::kFenced, std::nullopt);
    return given_up_ ? settle(true, Committed::kYes) : end({}, Committed::kYes);
  }
  if (!failures_.empty()) return end(std::exchange(failures_, {}), Committed::kNo);
  if (hook_ == Hook::kDecide) {
    const std::string& answer = std::get<AgreementTexts>(std::get<HookValue>(done.result)).texts.at(0);
    return end(make_ending({}, Committed::kNo, make_save_id(identity_.incarnation, identity_.checkpointer, counter_), answer));
  }

  try {
    take_global_plan(std::get<HookValue>(done.result));
  } catch (const Error& error) {  // inconsistent plans
    if (error.code() == ErrorCode::kInternal) throw;
    FailureMap failures;
    failures.emplace(identity_.rank,
                     capture_failure(identity_.rank, Phase::kGlobalPlan, to_string(actor_of(hook_)), std::current_exception()));
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
  answered_.clear();
  become(State::kMoving);
  wait_for_ranks(options_.phase_deadline);
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
  // No rank asks for a plan any more, and publication needs the memory. The plan cache keeps the
  // local plans.
  local_save_plans_.clear();
  global_save_plans_.clear();
  start_timer(options_.phase_deadline);
  run(Hook::kFinish, Phase::kFinish, FinishArguments{metadata_, std::make_shared<std::vector<WriteResults>>(std::move(results_))});
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
  run(Hook::kAskCommitted, Phase::kFinish, {});
}

void CoordinatorMachine::ask_for_end(int rank) {
  ++asked_[rank];
  ask_standing(rank);
}

void CoordinatorMachine::end_settling_if_complete() {
  if (state_ == State::kSettling && settled_ && asked_.empty()) end(std::exchange(failures_, {}), *settled_);
}

// --- helpers -------------------------------------------------------------------------------------

const Join& CoordinatorMachine::own_join() const {
  const auto own = joins_.find(identity_.rank);
  check_invariant(own != joins_.end(), "a coordinator's own rank has not joined the attempt");
  return own->second;
}

Failure CoordinatorMachine::failure_of(int rank, FailureKind kind, ErrorCode code, const char* actor,
                                       const std::string& what) const {
  return make_failure(rank, phase(), kind, code, actor, what);
}

Phase CoordinatorMachine::phase() const {
  // Before the phase in which operations differ, this rank may not have joined.
  return phase_of(state_, state_ == State::kMoving ? operation() : Operation::kSave).value_or(Phase::kJoin);
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
  effects_.emplace_back(std::move(effect));
}

void CoordinatorMachine::become(State state) {
  const bool waited = state_ == State::kJoining || collects();
  state_ = state;
  if (is_attempt()) count_progress_of_all();
  if (waited && state != State::kJoining && !collects() && identity_.world_size > 1)
    effects_.emplace_back(StopTimer{Timer::kWaiting});
  effects_.emplace_back(StateChanged{state});
}

void CoordinatorMachine::append(Effects effects) {
  for (auto& effect : effects) effects_.emplace_back(std::move(effect));
}

void CoordinatorMachine::send(int to, Message body) { effects_.emplace_back(Send{to, counter_, std::move(body)}); }

void CoordinatorMachine::ignore(const char* why) { effects_.emplace_back(InputIgnored{Ignored::kInput, why}); }

}  // namespace cairn::protocol
