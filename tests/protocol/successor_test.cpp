// Successors, which end a call of a lost coordinator, event by event; and a coordinator that turns
// out to be alive.
#include "steps.hpp"

namespace cairn::test {
namespace {

using protocol::RankStatus;
using protocol::StatusReply;

// The StatusReply of `rank` in an attempt with this counter that rank 0 coordinates.
StatusReply status_reply_of(int rank, std::uint64_t inquiry, RankStatus kind = RankStatus::kOrphaned) {
  StatusReply status;
  status.inquiry = inquiry;
  status.kind = kind;
  status.ticket = 10 + static_cast<std::uint64_t>(rank);
  status.ordinal = 1;
  status.checkpoint_id = "step_1";
  if (kind == RankStatus::kOrphaned) {
    status.delivered = true;
    status.lost = failure_on(0, "rank 0 as rank " + std::to_string(rank) + " lost it");
    status.lost->kind = FailureKind::kLost;
  }
  return status;
}

// A rank that succeeds rank 0 in a world of four.
struct Successor {
  explicit Successor(int rank = 1) : steps(4, rank) {}
  CoordinatorSteps steps;
  std::uint64_t inquiry = 0;

  Effects appeal(int from, std::uint64_t counter = 5) {
    auto effects = steps.receive(from, status_reply_of(from, 0), counter);
    const auto asked = sent<StatusRequest>(effects);
    if (!asked.empty()) inquiry = asked.front().second.inquiry;
    return effects;
  }
  Effects answer(int from, RankStatus kind = RankStatus::kOrphaned, std::uint64_t counter = 5) {
    return steps.receive(from, status_reply_of(from, inquiry, kind), counter);
  }
  // `from` answers that it follows `leader`.
  Effects answer_promised(int from, int leader) {
    StatusReply promised = status_reply_of(from, inquiry, RankStatus::kPromised);
    promised.leader = leader;
    return steps.receive(from, promised, 5);
  }
  // Loses `rank` for good: the successor asks again after each of the first three losses.
  Effects down(int rank) {
    for (int loss = 1; loss < 4; ++loss) CHECK(sent<StatusRequest>(steps.step(lost(rank))).size() == 1);
    return steps.step(lost(rank));
  }
};

TEST_CASE("without all results an attempt is unpublished, and the store is not asked") {
  Successor successor;
  successor.appeal(1);
  successor.down(0);
  StatusReply own = status_reply_of(1, successor.inquiry);
  own.delivered = false;
  own.failure = failure_on(1, "disk");
  successor.steps.receive(1, own, 5);
  successor.answer(2);
  const auto effects = successor.answer(3);
  CHECK(all_of<RunTask>(effects).empty());
  const auto told = sent<Outcome>(effects);
  REQUIRE(told.size() == 3);
  CHECK(told[0].second.committed == Committed::kNo);
  CHECK(ranks_of(told[0].second.failures) == std::set<int>{0, 1});
}

TEST_CASE("a successor does not know of a checkpoint if it cannot ask, or the store fails") {
  Successor successor;
  successor.appeal(2);
  successor.down(0);
  successor.answer(2);
  Effects effects;
  SUBCASE("its own call has ended") {
    successor.answer(1, RankStatus::kAbsent);
    effects = successor.answer(3);
    CHECK(all_of<RunTask>(effects).empty());
  }
  SUBCASE("the store fails") {
    successor.answer(1);
    const auto ask = all_of<RunTask>(successor.answer(3));
    REQUIRE(ask.size() == 1);
    effects = successor.steps.step(TaskEnded{ask[0].sequence, failure_on(1, "no route to the store")});
  }
  const auto told = sent<Outcome>(effects);
  REQUIRE(told.size() >= 2);
  for (const auto& [rank, outcome] : told) CHECK(outcome.committed == Committed::kUnknown);
}

TEST_CASE("ranks that do not answer are silent after twice the timeout") {
  Successor successor;
  const auto timers = all_of<StartTimer>(successor.appeal(1));
  CHECK(timers.back().timer == Timer::kSuccession);
  CHECK(timers.back().after == 2 * RuntimeOptions().heartbeat_timeout);
  successor.answer(1);
  successor.answer(2);
  const auto effects = successor.steps.step(TimerFired{Timer::kSuccession});
  const auto hook = all_of<RunTask>(effects);
  REQUIRE(hook.size() == 1);
  const auto told = sent<Outcome>(successor.steps.step(TimerFired{Timer::kSuccession}));  // the store does not answer
  REQUIRE(told.size() == 2);
  CHECK(told[0].second.committed == Committed::kUnknown);
  REQUIRE(ranks_of(told[0].second.failures) == std::set<int>{0, 3});
  CHECK(told[0].second.failures.at(3).kind == FailureKind::kSilent);
  CHECK(told[0].second.failures.at(3).what.find("rank 3") != std::string::npos);
}

TEST_CASE("a coordinator whom every follower has found silent is not waited for") {
  const auto answer_silent = [](Successor& successor, int rank) {
    StatusReply status = status_reply_of(rank, successor.inquiry);
    status.lost->kind = FailureKind::kSilent;
    return successor.steps.receive(rank, status, 5);
  };
  Successor successor;
  successor.appeal(2);
  for (const int rank : {1, 2}) CHECK(all_of<RunTask>(answer_silent(successor, rank)).empty());

  SUBCASE("the last answer ends the wait") {
    REQUIRE(all_of<RunTask>(answer_silent(successor, 3)).size() == 1);
    const auto told = sent<Outcome>(successor.steps.step(TimerFired{Timer::kSuccession}));
    REQUIRE(told.size() == 3);
    CHECK(ranks_of(told[0].second.failures) == std::set<int>{0});
    CHECK(told[0].second.failures.at(0).kind == FailureKind::kSilent);
  }
  SUBCASE("one that lost only the connection may reach it") {
    CHECK(all_of<RunTask>(successor.answer(3)).empty());
    CHECK(all_of<RunTask>(successor.down(0)).size() == 1);
  }
  SUBCASE("nor does one decide that hears it") {
    CHECK(all_of<RunTask>(successor.answer(3, RankStatus::kAttached)).empty());
    CHECK(all_of<RunTask>(answer_silent(successor, 3)).size() == 1);
  }
  SUBCASE("nor does it once the coordinator has answered: then it is waited for again and again") {
    CHECK(all_of<RunTask>(successor.answer(0, RankStatus::kAttached)).empty());
    CHECK(all_of<RunTask>(answer_silent(successor, 3)).empty());
    CHECK(sent<StatusRequest>(successor.steps.step(TimerFired{Timer::kSuccession})).size() == 4);
    for (const int rank : {1, 2, 3}) CHECK(all_of<RunTask>(answer_silent(successor, rank)).empty());
  }
  SUBCASE("its outcome counts as long as nothing is decided") {
    StatusReply ended = status_reply_of(0, successor.inquiry, RankStatus::kEnded);
    ended.ending = make_ending({}, Committed::kYes, "the save");
    const auto told = sent<Outcome>(successor.steps.receive(0, ended, 5));
    REQUIRE(told.size() == 2);
    CHECK(told[0].second.committed == Committed::kYes);
  }
}

TEST_CASE("a successor yields to an earlier one, and waits for a later one") {
  Successor first(1);
  first.appeal(1);
  first.answer(1);
  CHECK(sent<FollowOther>(first.answer_promised(3, 2)).empty());
  CHECK_FALSE(first.steps.machine().is_idle());

  Successor later(3);
  later.appeal(3);
  later.answer(3);
  // It does not yield to rank 2 before rank 2 itself has answered. If rank 2 is gone, its followers
  // will notice.
  CHECK(sent<FollowOther>(later.answer_promised(1, 2)).empty());
  const auto told = only<FollowOther>(later.answer_promised(2, 2), 3);
  CHECK(told.leader == 2);
  CHECK(later.steps.machine().is_idle());
}

TEST_CASE("the rank whose coordinator actor has died is the last to succeed it") {
  Successor first(1);
  first.appeal(2);
  first.answer(1);
  first.answer(2);
  first.answer(3);
  CHECK(sent<FollowOther>(first.answer_promised(0, 0)).empty());
  CHECK_FALSE(first.steps.machine().is_idle());

  Successor own(0);
  own.appeal(0);
  own.answer(0);
  own.answer(1);
  const auto told = sent<FollowOther>(own.answer_promised(2, 1));
  REQUIRE(told.size() == 2);  // rank 1 also answered as an orphan
  for (const auto& [to, other] : told) CHECK(other.leader == 1);
}

TEST_CASE("busy followers get phase_grace, then cancel_grace, then are listed") {
  Successor successor;
  successor.appeal(1);
  successor.down(0);
  successor.answer(1);
  successor.answer(2);
  StatusReply busy = status_reply_of(3, successor.inquiry);
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
    CHECK(ranks_of(told.at(0).second.failures) == std::set<int>{0});
    CHECK(told.at(0).second.committed == Committed::kNo);
  }
  SUBCASE("it does not") {
    successor.steps.step(TimerFired{Timer::kSuccession});
    const auto told = sent<Outcome>(successor.steps.step(TimerFired{Timer::kSuccession}));
    REQUIRE(ranks_of(told.at(0).second.failures) == std::set<int>{0, 3});
    CHECK(told.at(0).second.failures.at(3).kind == FailureKind::kBusy);
  }
}

TEST_CASE("a coordinator that is there and has not called yet is joined again") {
  Successor successor;
  successor.appeal(1, 0);
  successor.answer(1, RankStatus::kOrphaned, 0);
  const auto told = only<FollowOther>(successor.answer(0, RankStatus::kAbsent, 0));
  CHECK(told.leader == 0);
}

TEST_CASE("a rank that cannot join waits with the successor until the coordinator calls") {
  Successor successor;
  StatusReply shut_out = status_reply_of(2, 0);
  shut_out.delivered = false;
  shut_out.cannot_join = true;
  shut_out.inquiry = successor.inquiry = sent<StatusRequest>(successor.steps.receive(2, shut_out, 0)).at(0).second.inquiry;
  // The coordinator may answer before that rank does.
  CHECK(sent<FollowOther>(successor.answer(0, RankStatus::kAbsent, 0)).empty());
  CHECK(sent<FollowOther>(successor.steps.receive(2, shut_out, 0)).empty());
  // Rank 1 lost the coordinator as well, and can connect to it.
  const auto sent_back = only<FollowOther>(successor.answer(1, RankStatus::kOrphaned, 0), 1);
  CHECK(sent_back.leader == 0);
  CHECK(sent<Outcome>(successor.answer(3, RankStatus::kAbsent, 0)).empty());

  SUBCASE("the coordinator makes the call, and is told") {
    const auto told = sent<StatusReply>(successor.answer(0, RankStatus::kAttached, 0));
    REQUIRE(told.size() == 1);
    CHECK(told[0].first == 0);
    CHECK(told[0].second.kind == RankStatus::kEnded);
    const FailureMap failures = ungrouped(told[0].second.ending->failures);
    REQUIRE(ranks_of(failures) == std::set<int>{2});
    CHECK(failures.at(2).what.find("rank 0 as rank 2 lost it") != std::string::npos);
  }
  SUBCASE("it does not, until the join deadline") {
    CHECK(sent<Outcome>(successor.answer(1, RankStatus::kAbsent, 0)).empty());
    int rounds = 0;
    auto told = sent<Outcome>(Effects{});
    while (told.empty() && rounds < 1000) {
      ++rounds;
      told = sent<Outcome>(successor.steps.step(TimerFired{Timer::kSuccession}));
      if (told.empty()) CHECK(sent<Outcome>(successor.steps.receive(2, shut_out, 0)).empty());
    }
    CHECK(rounds == RuntimeOptions().join_deadline / (2 * RuntimeOptions().heartbeat_timeout));
    REQUIRE(told.size() == 1);
    CHECK(told[0].first == 2);
    CHECK(ranks_of(told[0].second.failures) == std::set<int>{0});
  }
  SUBCASE("it dies") {
    const auto told = sent<Outcome>(successor.down(0));
    CHECK(told.empty());  // rank 1 was sent back to it, and waits for it
    const auto ended = sent<Outcome>(successor.answer(1, RankStatus::kOrphaned, 0));
    REQUIRE(ended.size() == 2);
    CHECK(ranks_of(ended[0].second.failures) == std::set<int>{0});
  }
}

TEST_CASE("two calls of one checkpoint id are told apart by the successor") {
  // No rank has heard Begin of the second call.
  Successor successor;
  StatusReply second = status_reply_of(1, 0);
  second.ordinal = 2;
  second.delivered = false;
  second.inquiry = sent<StatusRequest>(successor.steps.receive(1, second, 0)).at(0).second.inquiry;
  CHECK(sent<StatusRequest>(successor.appeal(2, 5)).empty());
  successor.steps.receive(1, second, 0);
  successor.answer(2, RankStatus::kAbsent, 0);
  const auto effects = successor.answer(3, RankStatus::kAbsent, 0);
  CHECK(sent<Outcome>(effects).empty());  // the coordinator has not answered yet
  const auto ended = successor.steps.step(TimerFired{Timer::kSuccession});
  const auto told = only<Outcome>(ended, 1);
  CHECK(told.save_id.empty());
  CHECK(told.committed == Committed::kNo);
  const auto asked = sent<StatusRequest>(ended);
  REQUIRE(asked.size() == 4);
  CHECK(asked[0].second.ordinal == 1);
}

// --- a coordinator that turns out to be alive ----------------------------------------------------

}  // namespace
}  // namespace cairn::test
