// The steps of a load that differ from those of a save, in their order; see save.cpp.
#include <algorithm>
#include <utility>

#include <cairn/actors/protocol/coordinator_machine.hpp>
#include <cairn/actors/protocol/rank_machine.hpp>

namespace cairn::protocol {

// 3. Rank: send the local plan.
void RankMachine::ended(const LocalLoadPlan& made) { report_end_of_phase(State::kPlanned, made); }

// 4. Coordinator: make the global plan.
void CoordinatorMachine::receive(int from, const LocalLoadPlan& message) {
  if (state_ != State::kLocalPlans || answered_.count(from) != 0 || operation() != Operation::kLoad)
    return ignore("LocalLoadPlan out of turn");
  local_load_plans_[static_cast<std::size_t>(from)] = message.plan;
  metadata_save_ids_[static_cast<std::size_t>(from)] = message.metadata_save_id;
  answered(from);
}

// Ranks that opened different saves of one place would read parts of both.
void CoordinatorMachine::plan_load_globally() {
  const bool agree = std::all_of(metadata_save_ids_.begin(), metadata_save_ids_.end(),
                                 [&](const std::string& id) { return id == metadata_save_ids_.front(); });
  if (!agree) {
    FailureMap failures;
    for (int rank = 0; rank < identity_.world_size; ++rank)
      failures.emplace(rank,
                       failure_of(rank, FailureKind::kRaised, ErrorCode::kChanged, "coordinator",
                                  "the checkpoint was replaced while the ranks opened it: rank " + std::to_string(rank) +
                                      " has read the metadata of save \"" + metadata_save_ids_[static_cast<std::size_t>(rank)] +
                                      "\"; load again, and see whether all ranks share the directory"));
    return end(failures, Committed::kNo);
  }
  become(State::kGlobalPlan);
  start_timer(options_.phase_deadline);
  run(CreateGlobalLoadPlan{local_load_plans_});
}

void CoordinatorMachine::ended(const GlobalLoadPlans& made) {
  if (!outcome_.failures.empty()) return end(std::exchange(outcome_.failures, {}), Committed::kNo);  // cancelled meanwhile
  start_moving();
  for (const auto& [rank, join] : joins_) send(rank, GlobalLoadPlan{made.plans[static_cast<std::size_t>(rank)]});
}

// 5. Rank: read the data.
void RankMachine::receive(const GlobalLoadPlan& message) {
  if (state_ != State::kPlanned || call_.operation != Operation::kLoad) return ignore("GlobalLoadPlan out of turn");
  effects_.emplace_back(StopTimer{Timer::kAnswer});
  become(State::kMoving);
  outstanding_ = run(Read{message.plan});
}

void RankMachine::ended(const ReadDone& done) { report_end_of_phase(State::kReported, done); }

// 6. Coordinator: the last answer ends the load.
void CoordinatorMachine::receive(int from, const ReadDone&) {
  if (state_ != State::kMoving || answered_.count(from) != 0 || operation() != Operation::kLoad)
    return ignore("ReadDone out of turn");
  answered(from);
}

}  // namespace cairn::protocol
