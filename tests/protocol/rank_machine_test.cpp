// A rank's state machine, event by event.
#include "steps.hpp"

namespace cairn::test {
namespace {

using State = RankMachine::State;

TEST_CASE("the registrar gets every Join, the only one for an invalid coordinator") {
  RankSteps rank(2, 3);
  auto joins = sent<Join>(rank.step(call_of(1, Operation::kSave, 1)));
  REQUIRE(joins.size() == 2);
  CHECK(joins[0].first == kRegistrar);
  CHECK(joins[1].first == 1);
  CHECK(joins[1].second.coordinator_rank == 1);

  RankSteps lost_rank(2, 3);
  joins = sent<Join>(lost_rank.step(call_of(1, Operation::kSave, -4)));
  REQUIRE(joins.size() == 1);
  CHECK(joins[0].first == kRegistrar);
  // No other rank could tell it an outcome.
  const auto finished = all_of<CallResult>(lost_rank.step(lost(kRegistrar)));
  REQUIRE(finished.size() == 1);
  CHECK(finished[0].failures.at(2).code == ErrorCode::kInvalidArgument);
}

TEST_CASE("a rank whose message could not be read is told, if it waits for the others") {
  RankSteps rank;
  rank.step(call_of(1));
  const auto effects = rank.receive(0, Unreadable{failure_on(1, "too long", ErrorCode::kCorrupt)}, 0);
  CHECK(sent<Withdraw>(effects).size() == 1);
  CHECK(all_of<CallResult>(effects).at(0).failures.at(1).what == "too long");
  // In an attempt, the coordinator's outcome reports the failure.
  RankSteps member;
  member.plan(1);
  CHECK(was_ignored(member.receive(0, Unreadable{failure_on(1, "too long", ErrorCode::kCorrupt)}, 0)));
}

TEST_CASE("a message that cannot be sent or read fails its rank, with one text") {
  PeerDown unsent = lost(0, "Join cannot be sent: too long");
  unsent.reachable = true;
  unsent.code = ErrorCode::kInvalidArgument;
  RankSteps rank;
  rank.step(call_of(1));
  auto effects = rank.step(unsent);
  REQUIRE(sent<Cancel>(effects).size() == 1);
  CHECK(all_of<CallResult>(effects).at(0).failures.at(1) == sent<Cancel>(effects)[0].second.failure);
  CHECK(sent<Cancel>(effects)[0].second.failure.kind == FailureKind::kRaised);
  // In an attempt, the rank hears the outcome with the others.
  RankSteps member;
  member.plan(1);
  effects = member.step(unreadable(0));
  REQUIRE(sent<PhaseFailed>(effects).size() == 1);
  CHECK(sent<PhaseFailed>(effects)[0].second.failure.code == ErrorCode::kCorrupt);
  CHECK(all_of<CallResult>(effects).empty());
  // The rank waits only once. A second unreadable message may be the outcome, so the rank leaves.
  CHECK(sent<Cancel>(member.step(unreadable(0))).size() == 1);
}

// --- cached plans --------------------------------------------------------------------------------

TEST_CASE("a kept local plan is sent as its digest, and whole on request") {
  RankSteps rank;
  REQUIRE(sent<LocalSavePlan>(rank.plan(1)).size() == 1);
  auto effects = rank.run_tasks(rank.receive(protocol::GlobalSavePlan{plan_of(1), nullptr}));
  CHECK(sent<Written>(effects).size() == 1);
  rank.run_tasks(rank.receive(Told{1, {}, Committed::kYes, "id"}));

  const auto named = only<SameSavePlan>(rank.plan(2, 2));
  CHECK(was_ignored(rank.receive(NeedLocalPlan{Digest{}})));
  const auto whole = sent<LocalSavePlan>(rank.receive(NeedLocalPlan{named.digest}));
  REQUIRE(whole.size() == 1);
  CHECK(whole[0].second.digest == named.digest);
  // The save ends before the coordinator has planned with it: the rank sends the next plan whole.
  Told outcome{2, {}, Committed::kNo, "id"};
  outcome.failures.emplace(0, failure_on(0, "planner"));
  rank.run_tasks(rank.receive(outcome));
  CHECK(sent<LocalSavePlan>(rank.plan(3, 3)).size() == 1);
}

TEST_CASE("a rank writes the part of its local plan that it is told") {
  auto part = std::make_shared<PlanPart>();
  part->runs = {{2, 1}};  // it has two items
  for (const auto& wrong : {protocol::GlobalSavePlan{nullptr, part}, protocol::GlobalSavePlan{}}) {
    RankSteps rank;
    rank.plan(1);
    const auto failed = sent<PhaseFailed>(rank.receive(wrong));
    REQUIRE(failed.size() == 1);
    CHECK(failed[0].second.failure.code == ErrorCode::kCorrupt);
    CHECK(failed[0].second.failure.what.find("is not of this rank's local plan") != std::string::npos);
  }
  RankSteps rank;
  rank.plan(1);
  part = std::make_shared<PlanPart>();
  part->runs = {{1, 1}};
  part->storage_data = "to file 1";
  const RunTask task = all_of<RunTask>(rank.receive(protocol::GlobalSavePlan{nullptr, part})).at(0);
  const SavePlan& plan = *std::get<Write>(task.task).plan;
  REQUIRE(plan.items.size() == 1);
  CHECK(plan.names[plan.items[0].name] == plan_of(1)->names[plan_of(1)->items[1].name]);
  CHECK(plan.storage_data == "to file 1");
}

// --- stopping ------------------------------------------------------------------------------------

TEST_CASE("a rank that is told to stop stops its writer, and reports no failure of its own") {
  for (const bool cancelled : {true, false}) {
    RankSteps rank;
    const RunTask move = rank.move(1);
    auto effects = rank.receive(StopPhase{});
    const auto stop = all_of<RunTask>(effects);
    REQUIRE(stop.size() == 1);
    CHECK(std::holds_alternative<Abandon>(stop[0].task));
    CHECK(was_ignored(rank.receive(StopPhase{})));
    CHECK(sent<PhaseStopped>(rank.done(stop[0])).empty());  // the write has not ended
    effects = cancelled ? rank.step(TaskEnded{move.sequence, failure_on(1, "stopped", ErrorCode::kCancelled)}) : rank.done(move);
    CHECK(sent<PhaseStopped>(effects).size() == 1);
    CHECK(sent<PhaseFailed>(effects).empty());
    CHECK(sent<Written>(effects).empty());
    // It has already abandoned its writes, so only the release is left.
    Told outcome{1, {}, Committed::kNo, "id"};
    outcome.failures.emplace(0, failure_on(0, "disk"));
    CHECK(std::holds_alternative<Release>(all_of<RunTask>(rank.receive(outcome)).at(0).task));
  }
}

TEST_CASE("the outcome of a load stops a reader that still reads") {
  RankSteps rank;
  rank.step(call_of(1, Operation::kLoad));
  rank.run_tasks(rank.receive(0, Begin{1, {}}, 1));
  const RunTask read = all_of<RunTask>(rank.receive(protocol::GlobalLoadPlan{std::make_shared<LoadPlan>()})).at(0);
  Told outcome{1, {}, Committed::kNo, "id"};
  outcome.failures.emplace(0, failure_on(0, "lost"));
  const auto stop = all_of<RunTask>(rank.receive(outcome));
  REQUIRE(stop.size() == 1);
  CHECK(std::holds_alternative<Abandon>(stop[0].task));
  CHECK(all_of<RunTask>(rank.done(stop[0])).empty());  // the read has not ended
  const auto effects = rank.step(TaskEnded{read.sequence, failure_on(1, "stopped", ErrorCode::kCancelled)});
  CHECK(std::holds_alternative<Release>(all_of<RunTask>(effects).at(0).task));
}

TEST_CASE("kCancelled is a failure only before the rank is told to stop") {
  for (const bool told : {true, false}) {
    RankSteps rank;
    rank.step(call_of(1));
    const RunTask task = all_of<RunTask>(rank.receive(0, Begin{1, {}}, 1)).at(0);
    if (told) CHECK(all_of<RunTask>(rank.receive(StopPhase{})).empty());
    const auto effects = rank.step(TaskEnded{task.sequence, failure_on(1, "let go", ErrorCode::kCancelled)});
    CHECK(sent<PhaseStopped>(effects).size() == (told ? 1 : 0));
    CHECK(sent<PhaseFailed>(effects).size() == (told ? 0 : 1));
  }
}

TEST_CASE("a rank that fails by itself while it is told to stop says so") {
  RankSteps rank;
  const RunTask move = rank.move(1);
  const auto stop = all_of<RunTask>(rank.receive(StopPhase{}));
  CHECK(sent<PhaseFailed>(rank.step(TaskEnded{move.sequence, failure_on(1, "disk too")})).empty());  // `abandon` is running
  const auto reported = only<PhaseFailed>(rank.done(stop.at(0)));
  CHECK(reported.failure.what == "disk too");
}

}  // namespace
}  // namespace cairn::test
