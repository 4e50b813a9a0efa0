// Agreements: each rank sends a text with its Join, the coordinator decides, and its Outcome
// carries the answer.
#include "steps.hpp"

namespace cairn::test {
namespace {

using State = CoordinatorMachine::State;

CallStarted agreement_of(int rank, std::uint64_t ticket = 1, int coordinator = 0) {
  CallStarted call = call_of(ticket, Operation::kAgree, coordinator);
  call.text = "of " + std::to_string(rank);
  return call;
}

Join agreement_join(int rank, int world_size, std::uint64_t ticket = 1) {
  Join join = join_of(ticket, Operation::kAgree, 0, world_size);
  join.text = "of " + std::to_string(rank);
  return join;
}

// Lets all ranks join. Returns the task that decides, still running.
RunTask decide(CoordinatorSteps& coordinator, int world_size) {
  Effects effects;
  for (int rank = 0; rank < world_size; ++rank) effects = coordinator.receive(rank, agreement_join(rank, world_size), 0);
  CHECK(sent<Begin>(effects).empty());
  const auto hooks = all_of<RunTask>(effects);
  REQUIRE(hooks.size() == 1);
  CHECK(std::holds_alternative<Decide>(hooks[0].task));
  CHECK(coordinator.machine().state() == State::kDeciding);
  return hooks[0];
}

TEST_CASE("agreement: a rank waits for the others, and for the decision") {
  const auto waits = [](const CallStarted& call) { return all_of<StartTimer>(RankSteps(1, 2).step(call)).at(0).after; };
  CHECK(waits(agreement_of(1)) == waits(call_of(1)) + RuntimeOptions().phase_deadline);
}

TEST_CASE("agreement: different subjects are a failure, and no rank decides") {
  CoordinatorSteps coordinator(2);
  Join other = agreement_join(1, 2);
  other.checkpoint_id = "step_2";
  coordinator.receive(1, other, 0);
  const auto effects = coordinator.receive(0, agreement_join(0, 2), 0);
  CHECK(all_of<RunTask>(effects).empty());
  const auto told = sent<Outcome>(effects);
  REQUIRE(told.size() == 2);
  REQUIRE(ranks_of(told[0].second.failures) == std::set<int>{1});
  CHECK(told[0].second.failures.at(1).code == ErrorCode::kMismatch);
  CHECK(told[0].second.failures.at(1).what.find("rank 1 called agreement on \"step_2\"") == 0);
}

TEST_CASE("agreement: a slow decision fails it, and so does a caller's deadline") {
  CoordinatorSteps coordinator(2);
  const RunTask hook = decide(coordinator, 2);
  std::set<int> expected{0};
  SUBCASE("") {}
  SUBCASE("cancelled") {
    expected = {0, 1};
    const Failure enough = make_failure(1, Phase::kJoin, FailureKind::kCancelled, ErrorCode::kDeadline, "trainer", "enough");
    const auto effects = coordinator.receive(1, Cancel{1, enough, true}, 0);
    CHECK(sent<StopPhase>(effects).empty());
    CHECK(all_of<StartTimer>(effects).back().after == RuntimeOptions().cancel_grace);
  }
  const auto told = sent<Outcome>(coordinator.step(TimerFired{Timer::kPhase}));
  REQUIRE(told.size() == 2);
  CHECK(ranks_of(told[0].second.failures) == expected);
  CHECK(told[0].second.committed == Committed::kNo);
  if (expected.size() == 2)
    CHECK(told[0].second.failures.at(1).what == "enough; rank 0, which coordinates, was waiting for its own decide");
  CHECK(was_ignored(coordinator.step(TaskEnded{hook.sequence, Answer{"late"}})));
}

}  // namespace
}  // namespace cairn::test
