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

}  // namespace
}  // namespace cairn::test
