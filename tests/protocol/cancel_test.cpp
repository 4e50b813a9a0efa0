// Calls that a caller cancels, or that exceed their deadline: machine by machine in every state.
#include "steps.hpp"

namespace cairn::test {
namespace {

const CancelRequested kEnough{1, "enough"};

Cancel cancel_of(int rank, std::uint64_t ticket = 1, ErrorCode code = ErrorCode::kCancelled) {
  return Cancel{ticket, make_failure(rank, Phase::kWrite, FailureKind::kCancelled, code, "trainer", "enough"), true};
}

// Returns the failure in the only Cancel that the coordinator was sent.
Failure only_cancel(const Effects& effects) {
  const auto told = sent<Cancel>(effects);
  REQUIRE(told.size() == 1);
  CHECK(told[0].first == 0);
  CHECK(told[0].second.ticket == 1);
  CHECK(told[0].second.awaits_outcome);
  return told[0].second.failure;
}

void check_outcome(const std::vector<std::pair<int, Told>>& told, std::size_t ranks, int cancelled) {
  REQUIRE(told.size() == ranks);
  for (const auto& [rank, outcome] : told) {
    CHECK(ranks_of(outcome.failures) == std::set<int>{cancelled});
    CHECK(outcome.failures.at(cancelled).kind == FailureKind::kCancelled);
    CHECK(outcome.failures == told[0].second.failures);
    CHECK(outcome.committed == Committed::kNo);
  }
}

// --- a rank that waits ---------------------------------------------------------------------------

TEST_CASE("a rank that is told to stop, or how the call ended, stops the coordinator's task on it") {
  RankSteps told_to_stop(0, 2);
  told_to_stop.plan(1);
  const auto effects = told_to_stop.receive(StopPhase{});
  CHECK(all_of<StopTasks>(effects).size() == 1);
  CHECK(sent<PhaseStopped>(effects).size() == 1);

  RankSteps ended(0, 2);
  ended.plan(1);
  CHECK(all_of<StopTasks>(ended.receive(Told{1, {}, Committed::kYes, "id"})).size() == 1);
}

TEST_CASE("a rank that stopped in its local plan stays in that phase") {
  RankSteps rank(1, 2);
  rank.plan(1);
  rank.receive(StopPhase{});
  const auto finished = all_of<CallResult>(rank.run_tasks(rank.step(Cancelled{"shut down"})));
  REQUIRE(finished.size() == 1);
  CHECK(finished[0].failures.at(1).phase == Phase::kLocalPlan);
}

// --- the rank whose caller cancels ---------------------------------------------------------------

TEST_CASE("the cancellation of another call does not end this one") {
  RankSteps rank(1, 2);
  rank.plan(2);
  CHECK(was_ignored(rank.step(kEnough)));
}

TEST_CASE("the caller's deadline cancels the call, and says whom it waited for") {
  RankSteps rank(1, 2);
  CallStarted call = call_of(1);
  call.deadline = std::chrono::milliseconds(1500);
  const auto timers = all_of<StartTimer>(rank.step(call));
  REQUIRE(timers.size() == 2);
  CHECK(timers[1].timer == Timer::kCall);
  CHECK(timers[1].after == std::chrono::milliseconds(1500));
  const auto in_time = [&](const Effects& effects) {
    const auto failure = only_cancel(effects);
    CHECK(failure.kind == FailureKind::kCancelled);
    CHECK(failure.code == ErrorCode::kDeadline);
    CHECK(failure.what.find("the deadline of 1.5 s that the caller of rank 1 had set for the save of \"step_1\"") == 0);
    return failure.what;
  };
  SUBCASE("for its coordinator") {
    CHECK(in_time(rank.step(TimerFired{Timer::kCall})).find("waited for its coordinator, rank 0") != std::string::npos);
  }
  SUBCASE("for its own hook") {
    rank.receive(0, Begin{1, {}}, 1);
    CHECK(in_time(rank.step(TimerFired{Timer::kCall, "reset"})).find("waited for its own reset") != std::string::npos);
  }
  SUBCASE("an outcome stops the clock") {
    bool stopped = false;
    for (const auto& timer : all_of<StopTimer>(rank.receive(0, Told{1, {}, Committed::kNo, ""}, 0)))
      stopped = stopped || timer.timer == Timer::kCall;
    CHECK(stopped);
    CHECK(was_ignored(rank.step(TimerFired{Timer::kCall})));
  }
}

TEST_CASE("a deadline that has passed already cancels at once") {
  RankSteps rank(1, 2);
  CallStarted call = call_of(1);
  call.deadline = std::chrono::milliseconds(-3);
  CHECK(all_of<StartTimer>(rank.step(call)).at(1).after == Duration(0));
}

// --- the coordinator -----------------------------------------------------------------------------

TEST_CASE("a call cancelled during joining ends on present and late ranks") {
  CoordinatorSteps coordinator(3);
  coordinator.receive(0, join_of(1, Operation::kSave, 0, 3), 0);
  coordinator.receive(1, join_of(1, Operation::kSave, 0, 3), 0);
  const auto effects = coordinator.receive(1, cancel_of(1, 1, ErrorCode::kDeadline), 0);
  const auto told = sent<Outcome>(effects);
  check_outcome(told, 2, 1);
  CHECK(told[0].second.failures.at(1).what == "enough; rank 0, which coordinates, was waiting for rank 2 to join it");
  const auto late = only<Outcome>(coordinator.receive(2, join_of(1, Operation::kSave, 0, 3), 0));
  CHECK(late.failures == told[0].second.failures);
  CHECK(was_ignored(coordinator.receive(1, cancel_of(1), 0)));  // of a call that has ended
  CHECK_FALSE(sent<Begin>(coordinator.join(2)).empty());
}

TEST_CASE("cancelled by a rank that has delivered, while others have not") {
  CoordinatorSteps coordinator(3);
  coordinator.plan(1);
  coordinator.written(0);
  coordinator.written(2);
  const auto effects = coordinator.receive(2, cancel_of(2, 1, ErrorCode::kDeadline));
  CHECK(sent<StopPhase>(effects).size() == 1);
  const auto told = sent<Outcome>(coordinator.receive(1, PhaseStopped{}));
  check_outcome(told, 3, 2);
  CHECK(told[0].second.failures.at(2).what == "enough; rank 0, which coordinates, was waiting for rank 1 to end the write phase");
}

TEST_CASE("cancelled while the coordinator plans: its hook is waited for, but not for ever") {
  for (const bool ends : {true, false}) {
    CoordinatorSteps coordinator(2);
    coordinator.join(1);
    Effects effects;
    for (int rank = 0; rank < 2; ++rank) {
      const auto local = plan_of(rank);
      effects = coordinator.receive(rank, LocalSavePlan{local, plan_digest(*local)});
    }
    const RunTask hook = all_of<RunTask>(effects).at(0);
    effects = coordinator.receive(1, cancel_of(1));
    CHECK(sent<Outcome>(effects).empty());
    const auto stopped = sent<StopPhase>(effects);
    REQUIRE(stopped.size() == 1);
    CHECK(stopped[0].first == 0);
    CHECK(all_of<InputIgnored>(coordinator.receive(0, PhaseStopped{})).empty());
    coordinator.receive(1, PhaseFailed{cancel_of(1).failure});
    if (ends) {
      effects = coordinator.step(TaskEnded{hook.sequence, answer_to(hook, 0)});
      CHECK(all_of<RunTask>(effects).empty());
      check_outcome(sent<Outcome>(effects), 2, 1);
    } else {
      const auto told = sent<Outcome>(coordinator.step(TimerFired{Timer::kPhase}));
      REQUIRE(told.size() == 2);
      CHECK(ranks_of(told[0].second.failures) == std::set<int>{0, 1});
      CHECK(told[0].second.failures.at(0).kind == FailureKind::kBusy);
    }
  }
}

TEST_CASE("a call that waits for another one to end can be cancelled too") {
  CoordinatorSteps coordinator(4);
  coordinator.plan(1);
  for (const int rank : {1, 2}) coordinator.receive(rank, join_of(2, Operation::kSave, 0, 4), 0);
  check_outcome(sent<Outcome>(coordinator.receive(2, cancel_of(2, 2), 0)), 2, 2);
  const auto late = sent<Outcome>(coordinator.receive(3, join_of(2, Operation::kSave, 0, 4), 0));
  check_outcome(late, 1, 2);
}

}  // namespace
}  // namespace cairn::test
