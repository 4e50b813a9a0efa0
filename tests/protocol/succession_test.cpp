// The end of calls whose coordinator was lost, event by event and in seeded worlds.
#include "steps.hpp"

namespace cairn::test {
namespace {

using protocol::Standing;
using protocol::StandingKind;

PeerDown silent(int rank) {
  PeerDown down = lost(rank, "nothing was heard");
  down.kind = FailureKind::kSilent;
  down.code = ErrorCode::kDeadline;
  return down;
}

// What `rank`, of an attempt with this counter that 0 coordinates, says of itself.
Standing standing_of(int rank, std::uint64_t inquiry, StandingKind kind = StandingKind::kOrphaned) {
  Standing standing;
  standing.inquiry = inquiry;
  standing.kind = kind;
  standing.ticket = 10 + static_cast<std::uint64_t>(rank);
  standing.ordinal = 1;
  standing.checkpoint_id = "step_1";
  if (kind == StandingKind::kOrphaned) {
    standing.delivered = true;
    standing.lost = failure_on(0, "rank 0 as rank " + std::to_string(rank) + " lost it");
    standing.lost->kind = FailureKind::kLost;
  }
  return standing;
}

// Rank 1 of a world of four succeeds rank 0.
struct Successor {
  CoordinatorSteps steps{4, 1};
  std::uint64_t inquiry = 0;

  Effects appeal(int from, std::uint64_t counter = 5) {
    auto effects = steps.receive(from, standing_of(from, 0), counter);
    const auto asked = sent<AskStanding>(effects);
    if (!asked.empty()) inquiry = asked.front().second.inquiry;
    return effects;
  }
  Effects answer(int from, StandingKind kind = StandingKind::kOrphaned, std::uint64_t counter = 5) {
    return steps.receive(from, standing_of(from, inquiry, kind), counter);
  }
  // For good: it is asked again after each of the first losses.
  Effects down(int rank) {
    for (int loss = 1; loss < 4; ++loss) CHECK(sent<AskStanding>(steps.step(lost(rank))).size() == 1);
    return steps.step(lost(rank));
  }
};

// --- the successor ---------------------------------------------------------------------------------------------------------------

TEST_CASE("all ranks are asked; the store decides when all have delivered; all hear the same") {
  for (const auto answer : {Committed::kYes, Committed::kNo, Committed::kUnknown}) {
    Successor successor;
    const auto asked = sent<AskStanding>(successor.appeal(1));
    REQUIRE(asked.size() == 4);
    for (int rank = 0; rank < 4; ++rank) CHECK(asked[static_cast<std::size_t>(rank)].first == rank);
    CHECK(sent<AskStanding>(successor.appeal(2)).empty());  // it is being asked
    successor.down(0);
    successor.answer(1);
    successor.answer(2);
    const auto hooks = all_of<RunHook>(successor.answer(3));
    REQUIRE(hooks.size() == 1);
    CHECK(hooks[0].hook == Hook::kAskCommitted);
    CHECK(hooks[0].save_id.find("-5") != std::string::npos);
    const auto told = sent<Outcome>(successor.steps.step(HookDone{hooks[0].sequence, HookValue{answer}}));
    REQUIRE(told.size() == 3);
    CHECK(told.back().first == 1);  // the own rank's last
    for (const auto& [rank, outcome] : told) {
      CHECK(outcome.ticket == 10 + static_cast<std::uint64_t>(rank));
      CHECK(outcome.committed == answer);
      CHECK(outcome.save_id == hooks[0].save_id);
      REQUIRE(ranks_in(outcome.failures) == std::set<int>{0});
      CHECK(outcome.failures.at(0).what == "rank 0 as rank 1 lost it");
    }
    CHECK(successor.steps.machine().is_idle());
    // Who comes later hears it again.
    const auto late = sent<Outcome>(successor.appeal(3));
    REQUIRE(late.size() == 1);
    CHECK(late[0].second.failures == told[0].second.failures);
  }
}

TEST_CASE("an attempt whose results were not all delivered was not published, and nobody has to ask") {
  Successor successor;
  successor.appeal(1);
  successor.down(0);
  Standing own = standing_of(1, successor.inquiry);
  own.delivered = false;
  own.failure = failure_on(1, "disk");
  successor.steps.receive(1, own, 5);
  successor.answer(2);
  const auto effects = successor.answer(3);
  CHECK(all_of<RunHook>(effects).empty());
  const auto told = sent<Outcome>(effects);
  REQUIRE(told.size() == 3);
  CHECK(told[0].second.committed == Committed::kNo);
  CHECK(ranks_in(told[0].second.failures) == std::set<int>{0, 1});
}

TEST_CASE("an outcome that somebody has is adopted word for word") {
  Successor successor;
  successor.appeal(1);
  successor.answer(1);
  Standing ended = standing_of(3, successor.inquiry, StandingKind::kEnded);
  ended.outcome = Outcome{13, {}, Committed::kYes, "the save"};
  ended.outcome->failures.emplace(2, failure_on(2, "too late"));
  const auto told = sent<Outcome>(successor.steps.receive(3, ended, 5));
  REQUIRE(told.size() == 1);  // those that have not answered ask later
  CHECK(told[0].first == 1);
  CHECK(told[0].second.ticket == 11);
  CHECK(told[0].second.failures == ended.outcome->failures);
  CHECK(told[0].second.committed == Committed::kYes);
  CHECK(told[0].second.save_id == "the save");
  CHECK(sent<Outcome>(successor.appeal(2)).at(0).second.failures == ended.outcome->failures);
}

TEST_CASE("ranks that do not answer are silent, after twice the silence") {
  Successor successor;
  const auto timers = all_of<StartTimer>(successor.appeal(1));
  CHECK(timers.back().timer == Timer::kSuccession);
  CHECK(timers.back().after == 2 * RuntimeOptions().silence);
  successor.answer(1);
  successor.answer(2);
  const auto effects = successor.steps.step(TimerFired{Timer::kSuccession});
  const auto hook = all_of<RunHook>(effects);
  REQUIRE(hook.size() == 1);
  const auto told = sent<Outcome>(successor.steps.step(TimerFired{Timer::kSuccession}));  // nor does the store
  REQUIRE(told.size() == 2);
  CHECK(told[0].second.committed == Committed::kUnknown);
  REQUIRE(ranks_in(told[0].second.failures) == std::set<int>{0, 3});
  CHECK(told[0].second.failures.at(3).kind == FailureKind::kSilent);
  CHECK(told[0].second.failures.at(3).what.find("rank 3") != std::string::npos);
}

TEST_CASE("who hears the coordinator is waited for, and asked again and again") {
  Successor successor;
  successor.appeal(1);
  successor.answer(1);
  successor.answer(2);
  successor.answer(3, StandingKind::kAttached);
  for (int round = 0; round < 5; ++round) {
    const auto asked = sent<AskStanding>(successor.steps.step(TimerFired{Timer::kSuccession}));
    CHECK(asked.size() == 3);
    for (const int rank : {1, 2}) successor.answer(rank);
    CHECK(sent<Outcome>(successor.answer(3, StandingKind::kAttached)).empty());
  }
  // Once it has lost the coordinator too, the call ends.
  CHECK(all_of<RunHook>(successor.answer(3)).size() == 1);
}

TEST_CASE("a successor yields to an earlier one, and waits for a later one") {
  Successor successor;  // of rank 0, rank 1: the first
  successor.appeal(1);
  successor.answer(1);
  Standing promised = standing_of(3, successor.inquiry, StandingKind::kPromised);
  promised.leader = 2;
  CHECK(sent<FollowOther>(successor.steps.receive(3, promised, 5)).empty());
  CHECK_FALSE(successor.steps.machine().is_idle());

  CoordinatorSteps later(4, 3);
  Standing appeal = standing_of(3, 0);
  const auto inquiry = sent<AskStanding>(later.receive(3, appeal, 5)).at(0).second.inquiry;
  appeal.inquiry = inquiry;
  later.receive(3, appeal, 5);
  promised = standing_of(1, inquiry, StandingKind::kPromised);
  promised.leader = 2;
  // Not to one that is perhaps gone: then its followers will learn that.
  CHECK(sent<FollowOther>(later.receive(1, promised, 5)).empty());
  const auto told = sent<FollowOther>(later.receive(2, promised, 5));
  REQUIRE(told.size() == 1);
  CHECK(told[0].first == 3);
  CHECK(told[0].second.leader == 2);
  CHECK(later.machine().is_idle());
}

TEST_CASE("busy followers get time for their own failures, then are told to stop, then are listed") {
  Successor successor;
  successor.appeal(1);
  successor.down(0);
  successor.answer(1);
  successor.answer(2);
  Standing busy = standing_of(3, successor.inquiry);
  busy.busy = true;
  busy.delivered = false;
  const auto grace = all_of<StartTimer>(successor.steps.receive(3, busy, 5));
  REQUIRE(grace.size() == 1);
  CHECK(grace[0].after == RuntimeOptions().phase_grace);
  const auto stop = successor.steps.step(TimerFired{Timer::kSuccession});
  REQUIRE(sent<StopPhase>(stop).size() == 1);
  CHECK(sent<StopPhase>(stop)[0].first == 3);
  CHECK(all_of<StartTimer>(stop).at(0).after == RuntimeOptions().cancel_grace);
  SUBCASE("it stops") {
    busy.busy = false;
    successor.steps.receive(3, busy, 5);
    const auto told = sent<Outcome>(successor.steps.step(TimerFired{Timer::kSuccession}));
    CHECK(ranks_in(told.at(0).second.failures) == std::set<int>{0});
    CHECK(told.at(0).second.committed == Committed::kNo);
  }
  SUBCASE("it does not") {
    successor.steps.step(TimerFired{Timer::kSuccession});
    const auto told = sent<Outcome>(successor.steps.step(TimerFired{Timer::kSuccession}));
    REQUIRE(ranks_in(told.at(0).second.failures) == std::set<int>{0, 3});
    CHECK(told.at(0).second.failures.at(3).kind == FailureKind::kBusy);
  }
}

TEST_CASE("a coordinator that is there and has not called yet is joined again") {
  Successor successor;
  successor.appeal(1, 0);
  successor.answer(1, StandingKind::kOrphaned, 0);
  const auto told = sent<FollowOther>(successor.answer(0, StandingKind::kAbsent, 0));
  REQUIRE(told.size() == 1);
  CHECK(told[0].second.leader == 0);
}

// --- the orphan ------------------------------------------------------------------------------------------------------------------

TEST_CASE("a rank turns to its coordinator once more, then to the successors in order, then tries itself") {
  RankSteps rank(3, 5);
  rank.plan(1, 5);
  const auto to_whom = [](const Effects& effects) {
    const auto appeals = sent<Standing>(effects);
    return appeals.empty() ? -1 : appeals.back().first;
  };
  auto effects = rank.step(lost(0));
  CHECK(to_whom(effects) == 0);
  CHECK(all_of<StartTimer>(effects).back().after == 2 * RuntimeOptions().silence);
  CHECK(to_whom(rank.step(TimerFired{Timer::kAnswer})) == 1);
  CHECK(to_whom(rank.step(lost(1))) == 2);
  CHECK(to_whom(rank.step(TimerFired{Timer::kAnswer})) == 3);
  // Its own coordinator's machine does not answer either: all of it again, but without rank 1, and a few times.
  CHECK(to_whom(rank.step(TimerFired{Timer::kAnswer})) == -1);
  CHECK(to_whom(rank.step(TimerFired{Timer::kAnswer})) == 0);
  std::vector<Finished> finished;
  for (int step = 0; finished.empty() && step < 100; ++step)
    finished = all_of<Finished>(rank.run_hooks(rank.step(TimerFired{Timer::kAnswer})));
  REQUIRE(finished.size() == 1);
  CHECK(ranks_in(finished[0].failures) == std::set<int>{0});
  CHECK(finished[0].committed == Committed::kUnknown);
}

TEST_CASE("a coordinator that is silent is not asked again; nor are ranks that are known to be lost") {
  RankSteps rank(3, 5);
  rank.plan(1, 5);
  rank.step(lost(1));
  CHECK(sent<Standing>(rank.step(silent(0))).at(0).first == 2);
}

TEST_CASE("a follower takes the outcome of its successor alone, and delivers nothing to the coordinator") {
  RankSteps rank(2, 4);
  const RunHook move = rank.move(1, 5);
  rank.step(silent(0));
  const AskStanding ask{7, 0, 1, Operation::kSave, "step_1"};
  const auto standing = sent<Standing>(rank.receive(1, ask, 5));
  REQUIRE(standing.size() == 1);
  CHECK(standing[0].first == 1);
  CHECK(standing[0].second.inquiry == 7);
  CHECK(standing[0].second.kind == StandingKind::kOrphaned);
  CHECK(standing[0].second.busy);
  CHECK_FALSE(standing[0].second.delivered);
  // Another one is told whom it follows.
  const auto promised = sent<Standing>(rank.receive(3, AskStanding{9, 0, 1, Operation::kSave, "step_1"}, 5));
  REQUIRE(promised.size() == 1);
  CHECK(promised[0].second.kind == StandingKind::kPromised);
  CHECK(promised[0].second.leader == 1);

  const auto effects = rank.done(move);
  CHECK(sent<Written>(effects).empty());
  const auto changed = sent<Standing>(effects);
  REQUIRE(changed.size() == 1);
  CHECK(changed[0].first == 1);
  CHECK_FALSE(changed[0].second.busy);
  CHECK_FALSE(changed[0].second.delivered);

  Outcome outcome{1, {}, Committed::kNo, "id"};
  outcome.failures.emplace(0, failure_on(0, "lost"));
  CHECK(was_ignored(rank.receive(0, Outcome{1, {}, Committed::kYes, "id"}, 5)));
  CHECK(was_ignored(rank.receive(3, outcome, 5)));
  const auto ended = rank.run_hooks(rank.receive(1, outcome, 5));
  CHECK(all_of<Finished>(ended).at(0).failures == outcome.failures);
  // And who asks later hears it.
  const auto later = sent<Standing>(rank.receive(3, AskStanding{9, 0, 1, Operation::kSave, "step_1"}, 5));
  CHECK(later.at(0).second.kind == StandingKind::kEnded);
  CHECK(later.at(0).second.outcome->failures == outcome.failures);
}

TEST_CASE("those who asked a rank that heard its coordinator hear what it learns") {
  for (const bool loses_it : {true, false}) {
    RankSteps rank(2, 4);
    rank.plan(1, 5);
    const auto attached = sent<Standing>(rank.receive(1, AskStanding{7, 0, 1, Operation::kSave, "step_1"}, 5));
    CHECK(attached.at(0).second.kind == StandingKind::kAttached);
    Outcome outcome{1, {}, Committed::kNo, "id"};
    outcome.failures.emplace(1, failure_on(1, "lost"));
    const auto effects = loses_it ? rank.step(lost(0)) : rank.receive(0, outcome, 5);
    const auto told = sent<Standing>(effects);
    REQUIRE(told.size() == 1);
    CHECK(told[0].first == 1);
    CHECK(told[0].second.inquiry == 7);
    CHECK(told[0].second.kind == (loses_it ? StandingKind::kOrphaned : StandingKind::kEnded));
  }
}

TEST_CASE("a follower whose successor is lost follows the next that has asked") {
  RankSteps rank(3, 5);
  rank.plan(1, 5);
  rank.step(silent(0));
  rank.receive(1, AskStanding{7, 0, 1, Operation::kSave, "step_1"}, 5);
  rank.receive(2, AskStanding{8, 0, 1, Operation::kSave, "step_1"}, 5);
  const auto told = sent<Standing>(rank.step(lost(1)));
  REQUIRE(told.size() == 1);
  CHECK(told[0].first == 2);
  CHECK(told[0].second.kind == StandingKind::kOrphaned);
  // Sent on, it follows whom it was sent to.
  CHECK(sent<Standing>(rank.receive(2, FollowOther{4}, 5)).at(0).first == 4);
}

TEST_CASE("a coordinator that is there after all: it tells how the attempt ends, in which the rank counts as lost") {
  CoordinatorSteps coordinator(3);
  coordinator.plan(1);
  const auto counter = coordinator.machine().counter();
  coordinator.step(lost(2));
  Standing appeal = standing_of(2, 0);
  appeal.ticket = 1;
  const auto there = sent<AskStanding>(coordinator.receive(2, appeal, counter));
  REQUIRE(there.size() == 1);
  CHECK(there[0].second.inquiry == 0);
  coordinator.written(0);
  const auto told = sent<Outcome>(coordinator.written(1));
  REQUIRE(told.size() == 3);
  CHECK(ranks_in(told[0].second.failures) == std::set<int>{2});
  // Afterwards as well, and one that is not known is sent on.
  CHECK(sent<Outcome>(coordinator.receive(2, appeal, counter)).at(0).second.failures == told[0].second.failures);
  CHECK(sent<FollowOther>(coordinator.receive(2, appeal, counter + 9)).at(0).second.leader == -1);

  RankSteps rank(2, 3);
  rank.plan(1, 5);
  rank.step(lost(0));
  const auto found = rank.receive(0, AskStanding{0, 0, 1, Operation::kSave, "step_1"}, 5);
  CHECK(all_of<StartTimer>(found).size() == 1);
  CHECK(sent<LocalSavePlan>(found).size() == 1);  // the first may be lost
  const auto ended = rank.run_hooks(rank.receive(0, told[1].second, 5));
  CHECK(all_of<Finished>(ended).at(0).failures == told[1].second.failures);
}

TEST_CASE("a rank that joins again hears Begin, even before the coordinator has answered it") {
  RankSteps rank(1, 2);
  rank.step(call_of(1));
  const auto again = rank.step(lost(0));
  CHECK(sent<Join>(again).size() == 1);
  CHECK(sent<Standing>(again).size() == 1);
  CHECK(all_of<RunHook>(rank.receive(0, Begin{1, {}}, 1)).size() == 1);
  CHECK(was_ignored(rank.receive(0, AskStanding{0, 0, 1, Operation::kSave, "step_1"}, 0)));
}

// --- whole worlds ------------------------------------------------------------------------------------------------------------------

// Those who are there and were all the time end alike. Returns one of them, if there is one.
int check_survivors(MachineWorld& world, std::size_t calls) {
  int reference = -1;
  for (int rank = 0; rank < world.size(); ++rank) {
    if (!world.is_alive(rank)) continue;
    CAPTURE(rank);
    REQUIRE(world.finished(rank).size() == calls);
    CHECK(world.rank(rank).is_idle());
    CHECK(world.coordinator(rank).is_idle());
    const Finished& own = world.finished(rank).back();
    if (own.committed == Committed::kYes) CHECK(world.is_published(own.save_id));
    if (own.committed == Committed::kNo && !own.save_id.empty()) CHECK_FALSE(world.is_published(own.save_id));
    if (world.was_frozen(rank)) continue;
    if (reference == -1) reference = rank;
    CAPTURE(describe(own.failures));
    CAPTURE(describe(world.finished(reference).back().failures));
    CHECK(same(own, world.finished(reference).back()));
  }
  return reference;
}

TEST_CASE("ranks that die at any moment: the others end alike, and know whether the checkpoint exists") {
  int with_victims = 0;
  int published = 0;
  for (unsigned seed = 0; seed < 1500; ++seed) {
    CAPTURE(seed);
    Trouble trouble;
    trouble.kill = 1 + static_cast<int>(seed % 4);
    trouble.victims_max = 1 + static_cast<int>(seed / 4 % 3);
    trouble.duplicate = seed % 2 ? 10 : 0;
    MachineWorld world(2 + static_cast<int>(seed % 5), seed, trouble);
    world.start(call_of(1, seed % 6 ? Operation::kSave : Operation::kLoad, static_cast<int>(seed / 7) % world.size()));
    REQUIRE(world.run());
    const int survivor = check_survivors(world, 1);
    if (!world.had_victims() || survivor == -1) continue;
    ++with_victims;
    const Finished& finished = world.finished(survivor).back();
    if (finished.committed == Committed::kYes && !finished.failures.empty()) ++published;
    for (const auto& [rank, failure] : finished.failures) CHECK_FALSE(world.is_alive(rank));
  }
  CHECK(with_victims > 500);
  CHECK(published > 0);
}

TEST_CASE("a coordinator that dies around its publication: the others know whether it has published") {
  for (unsigned seed = 0; seed < 200; ++seed) {
    for (const bool before : {true, false}) {
      CAPTURE(seed);
      CAPTURE(before);
      const int size = 2 + static_cast<int>(seed % 4);
      const int coordinator = static_cast<int>(seed / 4) % size;
      MachineWorld world(size, seed);
      world.start(call_of(1, Operation::kSave, coordinator));
      const std::string finish = std::to_string(coordinator) + " finish";
      while (before ? std::count(world.hooks_run.begin(), world.hooks_run.end(), finish) == 0 : !world.has_published())
        world.run_some(1);
      world.kill(coordinator);
      REQUIRE(world.run());
      const int survivor = check_survivors(world, 1);
      const Finished& finished = world.finished(survivor).back();
      CHECK(ranks_in(finished.failures) == std::set<int>{coordinator});
      CHECK(finished.failures.at(coordinator).kind == FailureKind::kLost);
      CHECK(finished.committed == (before ? Committed::kNo : Committed::kYes));
      CHECK_FALSE(world.deadline_passed());
    }
  }
}

TEST_CASE("a coordinator that stands still before its publication comes back to a fence") {
  for (unsigned seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    const int size = 2 + static_cast<int>(seed % 4);
    MachineWorld world(size, seed);
    world.start(call_of(1));
    while (std::count(world.hooks_run.begin(), world.hooks_run.end(), "0 finish") == 0) world.run_some(1);
    world.freeze(0);
    REQUIRE(world.run());  // it thaws when nothing else can happen
    check_survivors(world, 1);
    const Finished& zombie = world.finished(0).back();
    CHECK(zombie.failures.at(0).code == ErrorCode::kFenced);
    CHECK(zombie.committed == Committed::kNo);
    CHECK(world.finished(1).back().failures.at(0).kind == FailureKind::kSilent);
    CHECK(world.finished(1).back().committed == Committed::kNo);
    world.start(call_of(2));
    REQUIRE(world.run());
    for (int rank = 0; rank < size; ++rank) CHECK(world.finished(rank).back().committed == Committed::kYes);
  }
}

TEST_CASE("ranks that stand still at any moment and come back: told so, they take part in the next call") {
  int with_victims = 0;
  for (unsigned seed = 0; seed < 1500; ++seed) {
    CAPTURE(seed);
    Trouble trouble;
    trouble.freeze = 1 + static_cast<int>(seed % 4);
    trouble.thaw = seed % 3 == 0 ? 5 : 0;
    trouble.victims_max = 1 + static_cast<int>(seed / 4 % 2);
    MachineWorld world(2 + static_cast<int>(seed % 5), seed, trouble);
    world.start(call_of(1, seed % 6 ? Operation::kSave : Operation::kLoad, static_cast<int>(seed / 7) % world.size()));
    REQUIRE(world.run());
    check_survivors(world, 1);
    with_victims += world.had_victims() ? 1 : 0;
    world.calm();
    world.start(call_of(2, Operation::kSave, static_cast<int>(seed / 7) % world.size()));
    REQUIRE(world.run());
    for (int rank = 0; rank < world.size(); ++rank) {
      REQUIRE(world.finished(rank).size() == 2);
      CAPTURE(describe(world.finished(rank).back().failures));
      CHECK(world.finished(rank).back().committed == Committed::kYes);
    }
  }
  CHECK(with_victims > 500);
}

TEST_CASE("links that break and come back: all ranks end alike") {
  int cut_worlds = 0;
  for (unsigned seed = 0; seed < 1500; ++seed) {
    CAPTURE(seed);
    Trouble trouble;
    trouble.cut = 1 + static_cast<int>(seed % 3);
    MachineWorld world(2 + static_cast<int>(seed % 4), seed, trouble);
    for (std::uint64_t call = 1; call <= 3; ++call) {
      CAPTURE(call);
      world.start(call_of(call, seed % 3 ? Operation::kSave : Operation::kLoad, static_cast<int>(call) % world.size()));
      REQUIRE(world.run());
      check_survivors(world, call);
    }
    cut_worlds += world.was_cut() ? 1 : 0;
  }
  CHECK(cut_worlds > 700);
}

TEST_CASE("one link that stays broken: who reaches the coordinator through others ends as they do") {
  for (unsigned seed = 0; seed < 600; ++seed) {
    CAPTURE(seed);
    const int size = 3 + static_cast<int>(seed % 3);
    MachineWorld world(size, seed);
    const int a = static_cast<int>(seed % static_cast<unsigned>(size));
    const int b = (a + 1 + static_cast<int>(seed / 5 % static_cast<unsigned>(size - 1))) % size;
    world.start(call_of(1, Operation::kSave, 0));
    REQUIRE(world.run_some(static_cast<int>(seed % 97)));
    world.separate(a, b);
    REQUIRE(world.run());
    check_survivors(world, 1);
  }
}

TEST_CASE("a world that falls apart: each part ends alike, and at most one believes that it has saved") {
  for (unsigned seed = 0; seed < 600; ++seed) {
    CAPTURE(seed);
    const int size = 3 + static_cast<int>(seed % 4);
    const int first_part = 1 + static_cast<int>(seed / 4 % static_cast<unsigned>(size - 1));
    MachineWorld world(size, seed);
    world.start(call_of(1, Operation::kSave, static_cast<int>(seed / 9) % size));
    REQUIRE(world.run_some(static_cast<int>(seed % 97)));
    for (int a = 0; a < first_part; ++a)
      for (int b = first_part; b < size; ++b) world.separate(a, b);
    REQUIRE(world.run());
    for (int rank = 0; rank < size; ++rank) {
      CAPTURE(rank);
      REQUIRE(world.finished(rank).size() == 1);
      const Finished& own = world.finished(rank).back();
      CHECK(same(own, world.finished(rank < first_part ? 0 : first_part).back()));
      if (own.committed == Committed::kYes) CHECK(world.is_published(own.save_id));
      if (own.committed == Committed::kNo) CHECK_FALSE(world.is_published(own.save_id));
    }
  }
}

}  // namespace
}  // namespace cairn::test
