// Ranks that lose their coordinator during a call, event by event.
#include <limits>

#include "steps.hpp"

namespace cairn::test {
namespace {

using protocol::RankStatus;
using protocol::StatusReply;

TEST_CASE("an orphan asks its coordinator, then the successors, then itself") {
  RankSteps rank(3, 5);
  rank.plan(1, 5);
  const auto to_whom = [](const Effects& effects) {
    const auto appeals = sent<StatusReply>(effects);
    return appeals.empty() ? -1 : appeals.back().first;
  };
  auto effects = rank.step(lost(0));
  CHECK(to_whom(effects) == 0);
  CHECK(all_of<StartTimer>(effects).back().after == 2 * RuntimeOptions().heartbeat_timeout);
  CHECK(to_whom(rank.step(TimerFired{Timer::kAnswer})) == 1);
  CHECK(to_whom(rank.step(lost(1))) == 2);
  CHECK(to_whom(rank.step(TimerFired{Timer::kAnswer})) == 3);
  // The coordinator machine of its own rank does not answer either. The rank tries everybody again,
  // except rank 1, a limited number of times.
  CHECK(to_whom(rank.step(TimerFired{Timer::kAnswer})) == -1);
  CHECK(to_whom(rank.step(TimerFired{Timer::kAnswer})) == 0);
  std::vector<CallResult> finished;
  for (int step = 0; finished.empty() && step < 100; ++step)
    finished = all_of<CallResult>(rank.run_tasks(rank.step(TimerFired{Timer::kAnswer})));
  REQUIRE(finished.size() == 1);
  CHECK(ranks_of(finished[0].failures) == std::set<int>{0});
  CHECK(finished[0].committed == Committed::kUnknown);
}

TEST_CASE("silent coordinators and lost ranks are not asked again") {
  RankSteps rank(3, 5);
  rank.plan(1, 5);
  rank.step(lost(1));
  CHECK(sent<StatusReply>(rank.step(silent(0))).at(0).first == 2);
}

TEST_CASE("a rank asks as many successors as its options say, then tries itself") {
  const std::vector<std::vector<int>> successors{{}, {1}, {1, 2}, {1, 2, 3}, {1, 2, 3, 4}};
  for (const unsigned asked : {0U, 1U, 2U, 3U, 4U, 5U, std::numeric_limits<unsigned>::max()}) {
    CAPTURE(asked);
    RuntimeOptions options;
    options.successors_asked = asked;
    RankSteps rank(5, 6, options);
    rank.plan(1, 5);
    std::vector<int> expected = successors[std::min<std::size_t>(asked, 4)];
    expected.push_back(5);
    std::vector<int> appealed_to;
    for (auto appeals = sent<StatusReply>(rank.step(silent(0))); !appeals.empty();
         appeals = sent<StatusReply>(rank.step(TimerFired{Timer::kAnswer})))
      appealed_to.push_back(appeals.back().first);
    CHECK(appealed_to == expected);
  }
}

TEST_CASE("a follower accepts only its successor's outcome") {
  RankSteps rank(2, 4);
  const RunTask move = rank.move(1, 5);
  rank.step(silent(0));
  const StatusRequest ask = ask_of(7);
  const auto status = only<StatusReply>(rank.receive(1, ask, 5), 1);
  CHECK(status.inquiry == 7);
  CHECK(status.kind == RankStatus::kOrphaned);
  CHECK(status.busy);
  CHECK_FALSE(status.delivered);
  // A second successor is told which one the rank follows.
  const auto promised = only<StatusReply>(rank.receive(3, ask_of(9), 5));
  CHECK(promised.kind == RankStatus::kPromised);
  CHECK(promised.leader == 1);

  const auto effects = rank.done(move);
  CHECK(sent<Written>(effects).empty());
  const auto changed = only<StatusReply>(effects, 1);
  CHECK_FALSE(changed.busy);
  CHECK_FALSE(changed.delivered);

  Told outcome{1, {}, Committed::kNo, "id"};
  outcome.failures.emplace(0, failure_on(0, "lost"));
  CHECK(was_ignored(rank.receive(0, Told{1, {}, Committed::kYes, "id"}, 5)));
  CHECK(was_ignored(rank.receive(3, outcome, 5)));
  const auto ended = rank.run_tasks(rank.receive(1, outcome, 5));
  CHECK(all_of<CallResult>(ended).at(0).failures == outcome.failures);
  // A rank that asks later hears the outcome.
  const auto later = sent<StatusReply>(rank.receive(3, ask_of(9), 5));
  CHECK(later.at(0).second.kind == RankStatus::kEnded);
  CHECK(ungrouped(later.at(0).second.ending->failures) == outcome.failures);
}

TEST_CASE("delivered results stay delivered if their rank fails later") {
  const StatusRequest ask = ask_of(7);
  RankSteps rank(2, 4);
  rank.done(rank.move(1, 5));
  rank.step(protocol::ActorDied{Actor::kPlanner, "a test"});
  rank.step(silent(0));
  const auto status = only<StatusReply>(rank.receive(1, ask, 5));
  CHECK(status.kind == RankStatus::kOrphaned);
  CHECK(status.delivered);
  CHECK(status.failure.has_value());

  RankSteps leaving(2, 4);
  leaving.done(leaving.move(1, 5));
  leaving.step(protocol::ActorDied{Actor::kPlanner, "a test"});
  const auto ended = leaving.run_tasks(leaving.step(protocol::Cancelled{"shut down"}));
  CHECK(all_of<CallResult>(ended).at(0).committed == Committed::kUnknown);
}

TEST_CASE("a rank that makes the call after a successor has asked about it says so") {
  RankSteps rank(2, 4);
  const StatusRequest ask = ask_of(7);
  CHECK(sent<StatusReply>(rank.receive(1, ask, 0)).at(0).second.kind == RankStatus::kAbsent);
  CHECK(sent<StatusReply>(rank.receive(3, ask_of(9, 2), 0)).at(0).second.kind == RankStatus::kAbsent);
  const auto told = sent<StatusReply>(rank.step(call_of(1)));
  REQUIRE(told.size() == 1);  // rank 3 asked about the next call, not this one
  CHECK(told[0].first == 1);
  CHECK(told[0].second.inquiry == 7);
  CHECK(told[0].second.kind == RankStatus::kAttached);
  // The rank follows that successor when it loses the coordinator.
  const auto lost_it = only<StatusReply>(rank.step(lost(0)), 1);
  CHECK(lost_it.kind == RankStatus::kOrphaned);
}

}  // namespace
}  // namespace cairn::test
