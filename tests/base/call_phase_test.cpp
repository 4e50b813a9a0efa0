#include <cairn/tests/support/plain.hpp>

#include <cairn/base/call_phase.hpp>

namespace cairn {
namespace {

TEST_CASE("call phase: a waiting rank stays in the phase of its part") {
  for (const auto operation : {Operation::kSave, Operation::kLoad}) {
    const Phase data = operation == Operation::kSave ? Phase::kWrite : Phase::kRead;
    CHECK(phase_of(RankState::kJoining, operation) == Phase::kJoin);
    CHECK(phase_of(RankState::kPreparing, operation) == Phase::kLocalPlan);
    CHECK(phase_of(RankState::kPlanned, operation) == Phase::kLocalPlan);
    CHECK(phase_of(RankState::kMoving, operation) == data);
    CHECK(phase_of(RankState::kReported, operation) == data);
    CHECK_FALSE(phase_of(RankState::kIdle, operation));
    CHECK_FALSE(phase_of(RankState::kEnding, operation));
    CHECK(phase_of(CoordinatorState::kJoining, operation) == Phase::kJoin);
    CHECK(phase_of(CoordinatorState::kLocalPlans, operation) == Phase::kLocalPlan);
    CHECK(phase_of(CoordinatorState::kGlobalPlan, operation) == Phase::kGlobalPlan);
    CHECK(phase_of(CoordinatorState::kMoving, operation) == data);
    CHECK(phase_of(CoordinatorState::kFinishing, operation) == Phase::kFinish);
    CHECK(phase_of(CoordinatorState::kSettling, operation) == Phase::kFinish);
    CHECK_FALSE(phase_of(CoordinatorState::kIdle, operation));
  }
}

}  // namespace
}  // namespace cairn
