// Many seeds and many kinds of faults. Every call must end exactly once, and ranks that can talk
// must agree.
#include "endings.hpp"

namespace cairn::test {
namespace {

TEST_CASE("failures of one phase are all in every rank's map, in any order of events") {
  for (unsigned seed = 0; seed < 300; seed += testing::kStride) {
    CAPTURE(seed);
    Trouble trouble;
    trouble.duplicate = 10;
    MachineWorld world(4, seed, trouble);
    const auto operation = seed % 2 ? Operation::kLoad : Operation::kSave;
    const std::string moving = operation == Operation::kLoad ? "Read" : "Write";
    const std::string task = seed % 4 < 2 ? "CreateLocalPlan" : moving;
    world.failing = {{1, task}, {3, task}};
    world.start(call_of(1, operation));
    REQUIRE(world.run());
    check_all_ended_once(world, 1);
    check_all_agree(world);
    CHECK(ranks_of(world.finished(2).back().failures) == std::set<int>{1, 3});
    CHECK(world.finished(2).back().committed == Committed::kNo);
    // The failure does not affect the next call.
    world.failing.clear();
    world.start(call_of(2, operation));
    REQUIRE(world.run());
    check_all_ended_once(world, 2);
    CHECK(world.finished(2).back().failures.empty());
  }
}

TEST_CASE("the coordinator's own tasks may fail") {
  for (const char* const task : {"CreateGlobalSavePlan", "Finish"}) {
    for (unsigned seed = 0; seed < 20; ++seed) {
      MachineWorld world(3, seed);
      world.failing = {{2, task}};
      world.start(call_of(1, Operation::kSave, 2));
      REQUIRE(world.run());
      check_all_ended_once(world, 1);
      check_all_agree(world);
      CHECK(ranks_of(world.finished(0).back().failures) == std::set<int>{2});
    }
  }
}

TEST_CASE("a rank that is shut down in the middle: the others agree") {
  int cancelled_worlds = 0;
  for (unsigned seed = 0; seed < 400; seed += testing::kStride) {
    CAPTURE(seed);
    Trouble trouble;
    trouble.cancel = 5;
    MachineWorld world(4, seed, trouble);
    world.start(call_of(1, seed % 2 ? Operation::kSave : Operation::kLoad, static_cast<int>(seed % 4)));
    REQUIRE(world.run());
    check_all_ended_once(world, 1);
    if (world.cancelled().empty()) continue;
    ++cancelled_worlds;
    const int gone = *world.cancelled().begin();
    const CallResult* reference = nullptr;
    for (int rank = 0; rank < 4; ++rank) {
      if (rank == gone) continue;
      if (reference) CHECK(same(world.finished(rank).back(), *reference));
      reference = &world.finished(rank).back();
    }
    if (!reference->failures.empty()) CHECK(ranks_of(reference->failures) == std::set<int>{gone});
  }
  CHECK(cancelled_worlds > 200 / testing::kStride);
}

TEST_CASE("actors that die: every call ends, all ranks agree") {
  for (unsigned seed = 0; seed < 300; seed += testing::kStride) {
    CAPTURE(seed);
    Trouble trouble;
    trouble.actor_dies = 2;
    MachineWorld world(3, seed, trouble);
    for (std::uint64_t call = 1; call <= 2; ++call) {
      world.start(call_of(call));
      REQUIRE(world.run());
      check_all_ended_once(world, call);
      check_all_agree(world);
      for (const auto& [rank, failure] : world.finished(0).back().failures) CHECK(failure.kind == FailureKind::kInternal);
    }
  }
}

TEST_CASE("in any order of events different coordinators fail all ranks at once") {
  for (unsigned seed = 0; seed < 200; seed += testing::kStride) {
    CAPTURE(seed);
    Trouble trouble;
    trouble.duplicate = seed % 2 ? 20 : 0;
    MachineWorld world(3, seed, trouble);
    const std::vector<int> coordinators = {static_cast<int>(seed % 3), static_cast<int>(seed / 3 % 3),
                                           seed % 5 == 0 ? 8 : static_cast<int>((seed + 1) % 3)};
    for (int rank = 0; rank < 3; ++rank)
      world.start(rank, call_of(1, Operation::kSave, coordinators[static_cast<std::size_t>(rank)]));
    REQUIRE(world.run());
    check_all_ended_once(world, 1);
    check_all_agree(world);
    CHECK_FALSE(world.finished(0).back().failures.empty());
    CHECK_FALSE(world.deadline_passed());
    world.start(call_of(2, Operation::kSave, static_cast<int>(seed % 3)));
    REQUIRE(world.run());
    check_all_ended_once(world, 2);
    CHECK(world.finished(0).back().failures.empty());
    CHECK_FALSE(world.deadline_passed());
  }
}

TEST_CASE("a rank that never calls: the present ones end at the join deadline, with one map") {
  for (unsigned seed = 0; seed < 50; ++seed) {
    MachineWorld world(4, seed);
    for (const int rank : {0, 1, 3}) world.start(rank, call_of(1));
    REQUIRE(world.run());
    CHECK(world.deadline_passed());
    CHECK(world.finished(2).empty());
    for (const int rank : {0, 1, 3}) {
      REQUIRE(world.finished(rank).size() == 1);
      CHECK(ranks_of(world.finished(rank).back().failures) == std::set<int>{2});
      CHECK(world.finished(rank).back().failures.at(2).kind == FailureKind::kSilent);
    }
  }
}

}  // namespace
}  // namespace cairn::test
