// No call waits for ranks that have ended or are unreachable. A warning names the ranks that a call
// waits for.
#include "steps.hpp"

namespace cairn::test {
namespace {

using protocol::RankStatus;
using protocol::StatusReply;

PeerDown refused_by(int rank, std::string why = "nobody listens there") {
  PeerDown down = lost(rank, std::move(why));
  down.unopened = true;
  return down;
}

// Returns the delay of the last start of `timer` in the effects.
std::optional<Duration> started(const Effects& effects, Timer timer) {
  std::optional<Duration> after;
  for (const auto& start : all_of<StartTimer>(effects))
    if (start.timer == timer) after = start.after;
  return after;
}

TEST_CASE("ranks that have not joined after a second are probed once each") {
  CoordinatorSteps coordinator(5);
  CHECK_FALSE(started(coordinator.receive(3, join_of(1, Operation::kSave, 0, 5), 0), Timer::kProbe));
  const auto joined = coordinator.receive(0, join_of(1, Operation::kSave, 0, 5), 0);
  REQUIRE(started(joined, Timer::kProbe));
  CHECK(*started(joined, Timer::kProbe) == std::chrono::seconds(1));
  const auto asked = sent<StatusRequest>(coordinator.step(TimerFired{Timer::kProbe}));
  REQUIRE(asked.size() == 3);
  std::set<int> whom;
  for (const auto& [rank, ask] : asked) whom.insert(rank);
  CHECK(whom == std::set<int>{1, 2, 4});
  // A rank that is alive but has not made the call yet does not end it.
  StatusReply absent;
  absent.inquiry = asked[0].second.inquiry;
  CHECK(coordinator.receive(1, absent, 0).empty());
  int more = 0;
  for (const int rank : {1, 2, 4})
    more += static_cast<int>(sent<StatusRequest>(coordinator.receive(rank, join_of(1, Operation::kSave, 0, 5), 0)).size());
  CHECK(more == 0);
}

TEST_CASE("a call that all ranks join at once asks nobody") {
  CoordinatorSteps coordinator(3);
  coordinator.receive(1, join_of(1, Operation::kSave, 0, 3), 0);
  coordinator.receive(2, join_of(1, Operation::kSave, 0, 3), 0);
  const auto effects = coordinator.receive(0, join_of(1, Operation::kSave, 0, 3), 0);
  CHECK(sent<Begin>(effects).size() == 3);
  CHECK(sent<StatusRequest>(coordinator.step(TimerFired{Timer::kProbe})).empty());
}

TEST_CASE("an attempt's outcome is not taken for that of a call that has not begun") {
  CoordinatorSteps coordinator(2);
  coordinator.receive(0, join_of(2), 0);
  const auto asked = only<StatusRequest>(coordinator.step(TimerFired{Timer::kProbe}));
  StatusReply answer;
  answer.inquiry = asked.inquiry;
  answer.kind = RankStatus::kEnded;
  answer.ending = make_ending({}, Committed::kYes, "an earlier one");
  CHECK(sent<Outcome>(coordinator.receive(1, answer, 7)).empty());
  CHECK(sent<Begin>(coordinator.receive(1, join_of(2), 0)).size() == 2);
}

TEST_CASE("a rank that cannot reach the coordinator asks other ranks before itself") {
  RankSteps first(1, 4);
  first.step(call_of(1));
  auto appeals = sent<StatusReply>(first.step(refused_by(0)));
  REQUIRE(appeals.size() == 1);
  CHECK(appeals[0].first == 2);
  CHECK(appeals[0].second.cannot_join);
  CHECK(sent<StatusReply>(first.step(TimerFired{Timer::kAnswer})).at(0).first == 3);
  CHECK(sent<StatusReply>(first.step(TimerFired{Timer::kAnswer})).at(0).first == 1);

  // Once the attempt has begun, the rank itself is the first successor.
  RankSteps in_attempt(1, 4);
  in_attempt.plan(1, 5);
  appeals = sent<StatusReply>(in_attempt.step(refused_by(0)));
  REQUIRE(appeals.size() == 1);
  CHECK(appeals[0].first == 1);
  CHECK_FALSE(appeals[0].second.cannot_join);
}

TEST_CASE("a rank that the coordinator connects to after all can join") {
  RankSteps rank(2, 4);
  rank.step(call_of(1));
  rank.step(refused_by(0));
  CHECK(sent<StatusReply>(rank.receive(1, ask_of(7), 0)).at(0).second.cannot_join);
  rank.step(protocol::PeerUp{0});
  CHECK_FALSE(sent<StatusReply>(rank.receive(1, ask_of(7), 0)).at(0).second.cannot_join);
}

TEST_CASE("an unreachable coordinator is not tried again before the successors") {
  RankSteps rank(3, 5);
  rank.step(call_of(1));
  const auto appeals = sent<StatusReply>(rank.step(refused_by(0)));
  REQUIRE(appeals.size() == 1);
  CHECK(appeals[0].first == 1);
}

TEST_CASE("a warning names ranks that have not joined, after 10 s and then every 30 s") {
  CoordinatorSteps coordinator(9);
  auto effects = coordinator.receive(0, join_of(1, Operation::kSave, 0, 9), 0);
  for (const int rank : {1, 2, 4, 5, 6, 8}) coordinator.receive(rank, join_of(1, Operation::kSave, 0, 9), 0);
  REQUIRE(started(effects, Timer::kWaiting));
  CHECK(*started(effects, Timer::kWaiting) == std::chrono::seconds(10));
  std::vector<std::string> warnings;
  std::vector<int> seconds;
  for (int i = 0; i < 5; ++i) {
    effects = coordinator.step(TimerFired{Timer::kWaiting});
    REQUIRE(all_of<Warn>(effects).size() == 1);
    warnings.push_back(all_of<Warn>(effects)[0].what);
    seconds.push_back(
        static_cast<int>(std::chrono::duration_cast<std::chrono::seconds>(*started(effects, Timer::kWaiting)).count()));
  }
  CHECK(warnings[0] ==
        "waiting for ranks 3, 7 to join the save of \"step_1\" (its call 1) by checkpointer \"main\": 10 s of 600 s");
  CHECK(warnings[1].find("40 s of 600 s") != std::string::npos);
  CHECK(warnings[4].find("130 s of 600 s") != std::string::npos);
  CHECK(seconds == std::vector<int>{30, 30, 30, 30, 30});
  coordinator.receive(3, join_of(1, Operation::kSave, 0, 9), 0);
  coordinator.receive(7, join_of(1, Operation::kSave, 0, 9), 0);
  // Within a phase, the warning comes only once some ranks have finished the phase.
  CHECK(all_of<Warn>(coordinator.step(TimerFired{Timer::kWaiting})).empty());
  for (int rank = 0; rank < 8; ++rank) coordinator.receive(rank, LocalSavePlan{plan_of(rank), plan_digest(*plan_of(rank))});
  effects = coordinator.step(TimerFired{Timer::kWaiting});
  REQUIRE(all_of<Warn>(effects).size() == 1);
  CHECK(all_of<Warn>(effects)[0].what.find("waiting for rank 8 to end the local_plan phase of the save of \"step_1\"") == 0);
  CHECK(all_of<Warn>(effects)[0].what.find("40 s of 3600 s") != std::string::npos);
}

TEST_CASE("warnings stop when the wait for ranks ends") {
  CoordinatorSteps coordinator(2);
  coordinator.finish(1);
  CHECK(was_ignored(coordinator.step(TimerFired{Timer::kWaiting})));
  CoordinatorSteps alone(1);
  CHECK_FALSE(started(alone.join(1), Timer::kWaiting));
}

}  // namespace
}  // namespace cairn::test
