// Agreements: each rank sends a text with its Join, the coordinator decides, and its Outcome
// carries the answer.
#include "endings.hpp"
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

void start(MachineWorld& world, std::uint64_t ticket, int coordinator = 0) {
  for (int rank = 0; rank < world.size(); ++rank) world.start(rank, agreement_of(rank, ticket, coordinator));
}

// Checks that every call which succeeded was answered from the texts of all ranks.
void check_answers(const MachineWorld& world) {
  std::string all;
  for (int rank = 0; rank < world.size(); ++rank) all += "of " + std::to_string(rank) + ";";
  for (int rank = 0; rank < world.size(); ++rank)
    for (const CallResult& finished : world.finished(rank)) CHECK(finished.answer == (finished.failures.empty() ? all : ""));
}

// --- machine by machine --------------------------------------------------------------------------

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

// --- worlds --------------------------------------------------------------------------------------

TEST_CASE("agreement: two messages a rank, and one hook") {
  MachineWorld world(5, 1);
  start(world, 1);
  REQUIRE(world.run());
  check_all_ended_once(world, 1);
  check_answers(world);
  CHECK(world.sent.size() == 10);
  CHECK(world.tasks_run == std::vector<std::string>{"0 Decide"});
}

TEST_CASE("agreement: in any order of events, with duplicates, all get the answer") {
  for (unsigned seed = 0; seed < 200; seed += testing::kStride) {
    CAPTURE(seed);
    const int size = 1 + static_cast<int>(seed % 5);
    Trouble trouble;
    trouble.duplicate = seed % 2 ? 20 : 0;
    MachineWorld world(size, seed, trouble);
    for (std::uint64_t call = 1; call <= 3; ++call) {
      start(world, call, static_cast<int>(seed / 5) % size);
      REQUIRE(world.run());
      check_all_ended_once(world, call);
      CHECK(world.finished(0).back().failures.empty());
    }
    check_answers(world);
    CHECK_FALSE(world.deadline_passed());
  }
}

// Whether a rank calls again before the others have made the same call for the first time is the
// scheduler's choice.
TEST_CASE("agreement: a call that some ranks cannot join fails, and later calls succeed") {
  constexpr int kRanks = 3;
  constexpr std::uint64_t kCalls = 4;
  int ahead = 0;
  for (unsigned seed = 0; seed < 600; seed += testing::kStride) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    std::set<std::pair<int, std::uint64_t>> unsendable;  // rank and call
    for (int rank = 1; rank < kRanks; ++rank)
      for (std::uint64_t call = 1; call < kCalls; ++call)
        if (random() % 3 == 0) unsendable.emplace(rank, call);
    MachineWorld world(kRanks, seed);
    std::vector<std::uint64_t> begun(kRanks);
    const auto is_over = [&] {
      return std::all_of(begun.begin(), begun.end(), [](std::uint64_t calls) { return calls == kCalls; });
    };
    for (int step = 0; step < 2000 && !is_over(); ++step) {
      const int rank = static_cast<int>(random() % kRanks);
      std::uint64_t& calls = begun[static_cast<std::size_t>(rank)];
      if (calls < kCalls && world.finished(rank).size() == calls && random() % 4 == 0) {
        CallStarted call = agreement_of(rank, ++calls);
        if (unsendable.count({rank, calls}) != 0) call.text = world.unsendable;
        world.start(rank, call);
        if (calls > *std::min_element(begun.begin(), begun.end()) + 1) ++ahead;
      }
      world.settle(1);
    }
    REQUIRE(is_over());
    REQUIRE(world.settle());
    for (int rank = 0; rank < kRanks; ++rank) {
      REQUIRE(world.finished(rank).size() == kCalls);
      for (std::uint64_t call = 1; call <= kCalls; ++call) {
        CAPTURE(call);
        const CallResult& finished = world.finished(rank)[call - 1];
        bool is_joined = true;
        for (int other = 1; other < kRanks; ++other) is_joined = is_joined && unsendable.count({other, call}) == 0;
        CHECK(finished.failures.empty() == is_joined);
        for (const auto& [failed, failure] : finished.failures) CHECK(unsendable.count({failed, call}) != 0);
      }
    }
    CHECK_FALSE(world.deadline_passed());
  }
  CHECK(ahead > 100 / testing::kStride);
}

}  // namespace
}  // namespace cairn::test
