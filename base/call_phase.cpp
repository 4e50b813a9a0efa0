#include <cairn/base/call_phase.hpp>

namespace cairn {
namespace {

Phase phase_of_data(Operation operation) { return operation == Operation::kLoad ? Phase::kRead : Phase::kWrite; }

}  // namespace

std::optional<Phase> phase_of(RankState state, Operation operation) noexcept {
  switch (state) {
    case RankState::kJoining:
      return Phase::kJoin;
    case RankState::kPreparing:
    case RankState::kPlanned:
      return Phase::kLocalPlan;
    case RankState::kMoving:
    case RankState::kReported:
      return phase_of_data(operation);
    case RankState::kIdle:
    case RankState::kEnding:
      break;
  }
  return std::nullopt;
}

std::optional<Phase> phase_of(CoordinatorState state, Operation operation) noexcept {
  switch (state) {
    case CoordinatorState::kJoining:
      return Phase::kJoin;
    case CoordinatorState::kLocalPlans:
      return Phase::kLocalPlan;
    case CoordinatorState::kGlobalPlan:
    case CoordinatorState::kDeciding:
      return Phase::kGlobalPlan;
    case CoordinatorState::kMoving:
      return phase_of_data(operation);
    case CoordinatorState::kFinishing:
    case CoordinatorState::kSettling:
      return Phase::kFinish;
    case CoordinatorState::kIdle:
      break;
  }
  return std::nullopt;
}

bool is_waiting(RankState state) noexcept { return state == RankState::kPlanned || state == RankState::kReported; }

}  // namespace cairn
