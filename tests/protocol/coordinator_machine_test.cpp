// The coordinator's state machine, event by event.
#include "steps.hpp"

namespace cairn::test {
namespace {

using State = CoordinatorMachine::State;

// --- joining -------------------------------------------------------------------------------------

TEST_CASE("calls that differ in more than the coordinator are not compared") {
  CoordinatorSteps registrar(2);
  registrar.receive(1, join_of(1, Operation::kSave, 1), 0);
  CHECK(sent<Outcome>(registrar.receive(0, join_of(2), 0)).empty());
  CHECK(registrar.machine().state() == State::kJoining);
}

TEST_CASE("a rank whose Join cannot be read fails the call") {
  for (const bool before : {true, false}) {
    CoordinatorSteps coordinator(2);
    if (before) CHECK(coordinator.step(unreadable(1)).empty());
    auto effects = coordinator.receive(0, join_of(1), 0);
    if (!before) effects = coordinator.step(unreadable(1));
    const auto told = only<Outcome>(effects, 0);
    CHECK(told.failures.at(1).code == ErrorCode::kCorrupt);
    // The rank's next Join is readable.
    CHECK(sent<Begin>(coordinator.join(2)).size() == 2);
  }
}

TEST_CASE("a rank that was lost before the call is probed before it counts as lost") {
  for (const int ending : {0, 1, 2, 3}) {
    CoordinatorSteps coordinator(2);
    coordinator.step(lost(1, "gone since yesterday"));
    const auto probe = coordinator.receive(0, join_of(1), 0);
    REQUIRE(sent<StatusRequest>(probe).size() == 1);
    CHECK(sent<StatusRequest>(probe)[0].first == 1);
    CHECK(all_of<StartTimer>(probe).back().timer == Timer::kProbe);
    Effects effects;
    if (ending == 0) effects = coordinator.step(lost(1, "nobody listens"));
    if (ending == 1) effects = coordinator.step(TimerFired{Timer::kProbe});
    if (ending == 2) effects = coordinator.step(PeerUp{1});
    if (ending == 3) effects = coordinator.receive(1, join_of(1), 0);
    if (ending < 2) CHECK(sent<Outcome>(effects).at(0).second.failures.at(1).kind == FailureKind::kLost);
    if (ending == 2) CHECK(was_ignored(coordinator.step(TimerFired{Timer::kProbe})) == false);
    if (ending >= 2) CHECK(sent<Outcome>(effects).empty());
    if (ending == 2) effects = coordinator.receive(1, join_of(1), 0);
    if (ending >= 2) CHECK(sent<Begin>(effects).size() == 2);
  }
}

TEST_CASE("a coordinator adopts the outcome of a call that ended without it") {
  CoordinatorSteps coordinator(3);
  coordinator.step(lost(1));
  coordinator.receive(2, join_of(1), 0);
  const auto probe = only<StatusRequest>(coordinator.receive(0, join_of(1), 0));
  StatusReply answer;
  answer.inquiry = probe.inquiry;
  answer.kind = RankStatus::kEnded;
  Told outcome{1, {}, Committed::kNo, "named"};
  outcome.failures.emplace(0, failure_on(0, "away"));
  answer.ending = outcome.ending();
  SUBCASE("of this call") {
    const auto told = sent<Outcome>(coordinator.receive(1, answer, 0));
    REQUIRE(told.size() == 2);
    for (const auto& [rank, heard] : told) {
      CHECK(heard.failures == outcome.failures);
      CHECK(heard.save_id == "named");
    }
    CHECK(coordinator.machine().is_idle());
  }
  SUBCASE("of this call, and another one is at the next") {
    coordinator.receive(2, Withdraw{1}, 0);
    coordinator.receive(2, join_of(2), 0);
    const auto told = sent<Outcome>(coordinator.receive(1, answer, 0));
    REQUIRE(told.size() == 1);
    CHECK(told[0].first == 0);
    coordinator.receive(1, join_of(2), 0);
    CHECK(sent<Begin>(coordinator.receive(0, join_of(2), 0)).size() == 3);
  }
  SUBCASE("of an earlier call") {
    --answer.inquiry;
    CHECK(sent<Outcome>(coordinator.receive(1, answer, 0)).empty());
    CHECK(sent<Begin>(coordinator.receive(1, join_of(1), 0)).size() == 3);
  }
}

TEST_CASE("a coordinator keeps the global plans until the next save has others") {
  CoordinatorSteps coordinator(2);
  coordinator.join(1);
  std::weak_ptr<const KeptGlobalPlans> plans;
  {
    Effects effects;
    for (int rank = 0; rank < 2; ++rank) {
      const auto local = plan_of(rank);
      effects = coordinator.receive(rank, LocalSavePlan{local, plan_digest(*local)});
    }
    const RunTask task = all_of<RunTask>(effects).at(0);
    const auto made = std::get<GlobalSavePlans>(answer_to(task, 0));
    plans = made.all;
    coordinator.step(TaskEnded{task.sequence, made});
  }
  coordinator.written(0);
  CHECK_FALSE(plans.expired());
  coordinator.run_tasks(coordinator.written(1));
  CHECK_FALSE(plans.expired());
  coordinator.plan(2);  // `answer_to` makes other ones
  CHECK(plans.expired());
}

TEST_CASE("counters continue where those of an earlier machine ended") {
  Identity identity = identity_of(0, 1);
  identity.counter_floor = 41;
  CoordinatorMachine coordinator(identity, {});
  coordinator.step(Received{0, 0, join_of(1, Operation::kSave, 0, 1)});
  CHECK(coordinator.counter() == 42);
  RankMachine rank(identity, {});
  CHECK(sent<Join>(rank.step(call_of(1))).at(0).second.counter_seen == 41);
}

// --- cached plans --------------------------------------------------------------------------------

TEST_CASE("content that does not fit the kept plan makes it be requested again") {
  CoordinatorSteps coordinator(2);
  const auto plan = plan_of(1);
  coordinator.plan(1);
  coordinator.written(0);
  coordinator.run_tasks(coordinator.written(1));
  coordinator.join(2);
  CHECK(sent<NeedLocalPlan>(coordinator.receive(1, SameSavePlan{plan_digest(*plan), {1, 2, 3}, {1, 2, 3}})).size() == 1);
  const auto content = content_of(*plan);
  CHECK(sent<NeedLocalPlan>(coordinator.receive(1, SameSavePlan{plan_digest(*plan), content.hashes, content.bytes})).empty());
}

TEST_CASE("hashes of tensors follow a kept plan from save to save, and go when a save has none") {
  const auto without = plan_of(1);
  auto hashed = std::make_shared<SavePlan>(*without);
  hashed->items[0].content_hash = 5;
  CHECK(plan_digest(*hashed) == plan_digest(*without));
  std::shared_ptr<const SavePlan> kept = without;
  for (const auto& plan : {hashed, without}) {
    const auto content = content_of(*plan);
    CHECK(content.hashes.size() == (plan == hashed ? 2 : 1));
    kept = refreshed(kept, content.hashes, content.bytes);
    REQUIRE(kept);
    for (std::size_t i = 0; i < 2; ++i) CHECK(kept->items[i].content_hash == plan->items[i].content_hash);
  }
  auto tensor = std::make_shared<SavePlan>(*hashed);
  tensor->items.pop_back();
  CHECK(refreshed(tensor, {}, {})->items[0].content_hash == 0);
  CHECK(refreshed(tensor, {6}, {})->items[0].content_hash == 6);
  CHECK_FALSE(refreshed(tensor, {6, 7}, {}));
}

TEST_CASE("a global plan is sent whole only if it is no part of the local one") {
  CoordinatorSteps coordinator(2);
  coordinator.join(1);
  Effects effects;
  for (int rank = 0; rank < 2; ++rank)
    effects = coordinator.receive(rank, LocalSavePlan{plan_of(rank), plan_digest(*plan_of(rank))});
  const RunTask task = all_of<RunTask>(effects).at(0);
  const auto part = std::make_shared<PlanPart>();
  const auto all = std::make_shared<KeptGlobalPlans>(KeptGlobalPlans{{}, {plan_of(0), plan_of(1)}, {part, nullptr}});
  const auto plans = sent<protocol::GlobalSavePlan>(
      coordinator.step(TaskEnded{task.sequence, GlobalSavePlans{all, std::make_shared<Metadata>()}}));
  REQUIRE(plans.size() == 2);
  CHECK(plans[0].second.part == part);
  CHECK_FALSE(plans[0].second.plan);
  CHECK_FALSE(plans[1].second.part);
  CHECK(plans[1].second.plan == all->plans[1]);
}

TEST_CASE("a coordinator offers its last global plans for local plans with the same digests, and no others") {
  CoordinatorSteps coordinator(2);
  Digest of{};
  const auto offered = [&](std::uint64_t ticket, bool is_kept) {
    coordinator.join(ticket);
    Effects effects;
    for (int rank = 0; rank < 2; ++rank) {
      const auto local = plan_of(rank);
      const auto columns = content_of(*local);
      effects = is_kept ? coordinator.receive(rank, SameSavePlan{plan_digest(*local), columns.hashes, columns.bytes})
                        : coordinator.receive(rank, LocalSavePlan{local, plan_digest(*local)});
    }
    const RunTask task = all_of<RunTask>(effects).at(0);
    const auto& request = std::get<CreateGlobalSavePlan>(task.task);
    if (ticket > 1) CHECK(request.of == of);
    of = request.of;
    // As a planner does that makes its plans anew, or repeats them.
    GlobalSavePlans made{request.last, std::make_shared<Metadata>()};
    if (!made.all) made = std::get<GlobalSavePlans>(answer_to(task, 0));
    effects = coordinator.step(TaskEnded{task.sequence, made});
    CHECK(sent<protocol::GlobalSavePlan>(effects).size() == 2);
    coordinator.written(0);
    coordinator.run_tasks(coordinator.written(1));
    return request.last != nullptr;
  };
  CHECK_FALSE(offered(1, false));
  CHECK(offered(2, false));
  CHECK(offered(3, true));
  CHECK(offered(4, true));
  auto other = std::make_shared<SavePlan>(*plan_of(1));
  other->items.pop_back();
  coordinator.join(5);
  coordinator.receive(0, LocalSavePlan{plan_of(0), plan_digest(*plan_of(0))});
  const Effects effects = coordinator.receive(1, LocalSavePlan{other, plan_digest(*other)});
  const auto request = std::get<CreateGlobalSavePlan>(all_of<RunTask>(effects).at(0).task);
  CHECK_FALSE(request.last);
  CHECK(request.of != of);
}

// --- stored outcomes -----------------------------------------------------------------------------

TEST_CASE("a message of a recently ended attempt is answered by its outcome") {
  RuntimeOptions options;
  options.outcomes_kept = 2;
  CoordinatorSteps coordinator(2, 0, options);
  std::vector<std::uint64_t> counters;
  for (std::uint64_t ticket = 1; ticket <= 3; ++ticket) {
    coordinator.plan(ticket);
    counters.push_back(coordinator.machine().counter());
    coordinator.receive(1, PhaseFailed{failure_on(1, "disk of save " + std::to_string(ticket))});
    coordinator.written(0);
    CHECK(coordinator.machine().is_idle());
  }
  const auto again = only<Outcome>(coordinator.receive(1, Written{std::make_shared<WriteResults>()}, counters[2]));
  CHECK(again.ticket == 3);
  CHECK(again.failures.at(1).what == "disk of save 3");
  CHECK(sent<Outcome>(coordinator.receive(1, ReadDone{}, counters[1])).at(0).second.ticket == 2);
  CHECK(was_ignored(coordinator.receive(1, ReadDone{}, counters[0])));
  // The same holds for a Join that was in flight meanwhile.
  CHECK(sent<Outcome>(coordinator.receive(1, join_of(3), 0)).at(0).second.ticket == 3);
}

TEST_CASE("a lost rank that returns gets the outcome; one that left does not") {
  for (const bool comes_back : {true, false}) {
    CoordinatorSteps coordinator(3);
    coordinator.plan(1);
    coordinator.step(lost(1));
    if (comes_back) coordinator.written(1);  // no longer counts as a result
    coordinator.receive(2, Cancel{1, failure_on(2, "left")}, 0);
    const auto told = sent<Outcome>(coordinator.written(0));
    REQUIRE(told.size() == (comes_back ? 2 : 1));
    CHECK(told.front().first == (comes_back ? 1 : 0));
    CHECK(ranks_of(told.front().second.failures) == std::set<int>{1, 2});
  }
}

// --- stopping the others -------------------------------------------------------------------------

TEST_CASE("after a failure ranks get phase_grace, then cancel_grace, then are busy") {
  RuntimeOptions options;
  CoordinatorSteps coordinator(4, 0, options);
  coordinator.plan(1);
  const auto first = all_of<StartTimer>(coordinator.receive(1, PhaseFailed{failure_on(1, "disk")}));
  REQUIRE(first.size() == 1);
  CHECK(first[0].after == options.phase_grace);
  // A second failure does not restart the timer.
  CHECK(all_of<StartTimer>(coordinator.receive(2, PhaseFailed{failure_on(2, "disk too")})).empty());
  const auto stop = coordinator.step(TimerFired{Timer::kPhase});
  CHECK(all_of<StartTimer>(stop).at(0).after == options.cancel_grace);
  const auto told = sent<StopPhase>(stop);
  REQUIRE(told.size() == 2);
  CHECK(told[0].first == 0);
  CHECK(told[1].first == 3);
  coordinator.receive(0, PhaseStopped{});
  const auto outcome = sent<Outcome>(coordinator.step(TimerFired{Timer::kPhase}));
  REQUIRE(outcome.size() == 4);
  const auto& failures = outcome[0].second.failures;
  CHECK(ranks_of(failures) == std::set<int>{1, 2, 3});  // rank 0 was only told to stop
  CHECK(failures.at(2).what == "disk too");
  CHECK(failures.at(3).kind == FailureKind::kBusy);
  CHECK(failures.at(3).phase == Phase::kWrite);
  CHECK(failures.at(3).what.find("rank 3") != std::string::npos);
}

TEST_CASE("an attempt that has failed ends as soon as all have stopped") {
  CoordinatorSteps coordinator(2);
  coordinator.plan(1);
  CHECK(was_ignored(coordinator.receive(0, PhaseStopped{})));  // no rank was told to stop
  coordinator.receive(1, PhaseFailed{failure_on(1, "disk")});
  coordinator.step(TimerFired{Timer::kPhase});
  const auto outcome = sent<Outcome>(coordinator.receive(0, PhaseStopped{}));
  REQUIRE(outcome.size() == 2);
  CHECK(ranks_of(outcome[0].second.failures) == std::set<int>{1});
  // The next attempt gets the full phase deadline.
  const auto timers = all_of<StartTimer>(coordinator.join(2));
  CHECK(timers.back().after == RuntimeOptions().phase_deadline);
}

TEST_CASE("without a failure a slow rank is named at the phase deadline") {
  CoordinatorSteps coordinator(2);
  const auto timers = all_of<StartTimer>(coordinator.plan(1));
  CHECK(timers.back().after == RuntimeOptions().phase_deadline);
  CHECK(all_of<StartTimer>(coordinator.written(0)).empty());
  const auto outcome = sent<Outcome>(coordinator.step(TimerFired{Timer::kPhase}));
  CHECK(ranks_of(outcome.at(0).second.failures) == std::set<int>{1});
  CHECK(outcome.at(0).second.failures.at(1).kind == FailureKind::kSilent);
  CHECK(outcome.at(0).second.failures.at(1).what.find("rank 1 did not end its write phase within 3600.0 s") == 0);
}

TEST_CASE("a coordinator that stood still decides nothing once a rank gave up on it") {
  CoordinatorSteps coordinator(4);
  SUBCASE("while ranks write") {
    coordinator.plan(1);
    coordinator.written(2);
    coordinator.step(lost(3));
    const auto effects = coordinator.step(gave_up(1));
    const auto told = sent<CoordinatorDown>(effects);
    REQUIRE(told.size() == 2);  // rank 2 waits for this coordinator; ranks 1 and 3 do not
    CHECK(told[0].first == 0);
    CHECK(told[1].first == 2);
    for (const auto& [rank, down] : told) {
      CHECK(down.ticket == 1);
      CHECK(down.failure.rank == 0);
      CHECK(down.failure.kind == FailureKind::kSilent);
      CHECK(down.failure.what.find("rank 0 stood still: rank 1 closed the link") == 0);
    }
    CHECK(sent<Outcome>(effects).empty());
  }
  SUBCASE("while ranks plan") {
    coordinator.join(1);
    CHECK(sent<CoordinatorDown>(coordinator.step(gave_up(1))).size() == 3);
  }
  CHECK(coordinator.machine().state() == CoordinatorMachine::State::kIdle);
  CHECK(was_ignored(coordinator.written(0)));
  StatusReply orphan;
  orphan.kind = RankStatus::kOrphaned;
  orphan.ticket = orphan.ordinal = 1;
  orphan.lost = failure_on(0, "gone");
  CHECK(sent<FollowOther>(coordinator.receive(2, orphan, 1)).size() == 1);
  CHECK(sent<Begin>(coordinator.join(2)).size() == 4);
}

// Rank 1 answers that the call has ended: all three ranks hear the same outcome.
void check_adopts_outcome(CoordinatorSteps& coordinator, StatusReply answer, std::uint64_t counter, Committed committed) {
  Told outcome{1, {}, committed, "named"};
  outcome.failures.emplace(0, failure_on(0, "silent"));
  answer.kind = RankStatus::kEnded;
  answer.ending = outcome.ending();
  const auto told = sent<Outcome>(coordinator.receive(1, answer, counter));
  REQUIRE(told.size() == 3);
  for (const auto& [rank, heard] : told) CHECK(heard.failures == outcome.failures);
}

TEST_CASE("a coordinator that was given up while publishing adopts the outcome") {
  CoordinatorSteps coordinator(3);
  const RunTask finish = coordinator.finish(1);
  const std::uint64_t counter = coordinator.machine().counter();
  CHECK(sent<CoordinatorDown>(coordinator.step(gave_up(1))).empty());
  const auto asked = sent<StatusRequest>(coordinator.step(TaskEnded{finish.sequence, Published{}}));
  REQUIRE(asked.size() == 2);
  StatusReply answer;
  answer.inquiry = asked[0].second.inquiry;
  SUBCASE("a rank has ended the call") { check_adopts_outcome(coordinator, answer, counter, Committed::kYes); }
  SUBCASE("no rank knows an outcome") {
    answer.kind = RankStatus::kAttached;
    CHECK(coordinator.receive(1, answer, counter).empty());
    const auto told = sent<Outcome>(coordinator.receive(2, answer, counter));
    REQUIRE(told.size() == 3);
    for (const auto& [rank, heard] : told) CHECK(heard.failures.empty());
  }
}

TEST_CASE("a fenced coordinator asks the others for the outcome and adopts it") {
  CoordinatorSteps coordinator(3);
  const RunTask finish = coordinator.finish(1);
  const std::uint64_t counter = coordinator.machine().counter();
  const auto settling = coordinator.step(TaskEnded{finish.sequence, failure_on(0, "the attempt is not open", ErrorCode::kFenced)});
  const auto asked = sent<StatusRequest>(settling);
  REQUIRE(asked.size() == 2);
  StatusReply answer;
  answer.inquiry = asked[0].second.inquiry;
  SUBCASE("one of them knows") { check_adopts_outcome(coordinator, answer, counter, Committed::kNo); }
  SUBCASE("nobody knows: its own failure stands") {
    answer.kind = RankStatus::kAttached;
    CHECK(coordinator.receive(1, answer, counter).empty());
    const auto hook = all_of<RunTask>(settling).at(0);
    CHECK(sent<Outcome>(coordinator.step(TaskEnded{hook.sequence, Committed::kNo})).empty());
    Effects effects;
    SUBCASE("one has ended the call alone") {
      answer.kind = RankStatus::kAbsent;
      effects = coordinator.receive(2, answer, counter);
    }
    SUBCASE("one cannot be reached: the link may have been broken long ago, so it is asked once more") {
      CHECK(sent<StatusRequest>(coordinator.step(lost(2))).size() == 1);
      effects = coordinator.step(lost(2));
    }
    SUBCASE("one waits for a successor, and hears nothing in time") {
      answer.kind = RankStatus::kOrphaned;
      answer.lost = failure_on(0, "lost");
      CHECK(coordinator.receive(2, answer, counter).empty());
      effects = coordinator.step(TimerFired{Timer::kPhase});
    }
    const auto told = sent<Outcome>(effects);
    REQUIRE_FALSE(told.empty());
    CHECK(told[0].second.failures.at(0).code == ErrorCode::kFenced);
    CHECK(told[0].second.committed == Committed::kNo);
  }
}

TEST_CASE("a writer without an answer leaves committed unknown, and the failure") {
  CoordinatorSteps coordinator(2);
  const RunTask finish = coordinator.finish(1);
  const auto asked = coordinator.step(TaskEnded{finish.sequence, failure_on(0, "after the rename")});
  CHECK(std::holds_alternative<AskCommitted>(all_of<RunTask>(asked).at(0).task));
  CHECK(all_of<StartTimer>(asked).at(0).after == RuntimeOptions().cancel_grace);
  const auto outcome = sent<Outcome>(coordinator.step(TimerFired{Timer::kPhase}));
  CHECK(outcome.at(0).second.committed == Committed::kUnknown);
  CHECK(outcome.at(0).second.failures.at(0).what == "after the rename");
}

}  // namespace
}  // namespace cairn::test
