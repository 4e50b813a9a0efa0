// The end of calls whose coordinator is lost, in seeded worlds.
#include "endings.hpp"

namespace cairn::test {
namespace {

TEST_CASE("ranks may die at any moment; the others agree and know what is committed") {
  int with_victims = 0;
  int published = 0;
  for (unsigned seed = 0; seed < 1500; seed += testing::kStride) {
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
    const CallResult& finished = world.finished(survivor).back();
    if (finished.committed == Committed::kYes && !finished.failures.empty()) ++published;
    for (const auto& [rank, failure] : finished.failures) CHECK_FALSE(world.is_alive(rank));
  }
  CHECK(with_victims > 500 / testing::kStride);
  if (testing::kStride == 1) CHECK(published > 0);  // in a few seeds of hundreds
}

TEST_CASE("a coordinator that freezes at any moment resumes to the others' outcome") {
  int named = 0;
  for (unsigned seed = 0; seed < 1200; seed += testing::kStride) {
    CAPTURE(seed);
    const auto operation = seed % 3 == 0 ? Operation::kLoad : seed % 3 == 1 ? Operation::kSave : Operation::kAgree;
    CAPTURE(static_cast<int>(operation));
    const int size = 2 + static_cast<int>(seed / 3 % 4);
    MachineWorld world(size, seed);
    world.start(call_of(1, operation));
    world.run_some(static_cast<int>(seed / 12) % 60);
    world.freeze(0);
    REQUIRE(world.run());  // rank 0 thaws when nothing else can happen
    check_survivors(world, 1);
    const auto& others = world.finished(1).back();
    const auto& own = world.finished(0).back();
    CAPTURE(describe(others.failures));
    CAPTURE(describe(own.failures));
    CHECK(own.committed == others.committed);
    // The coordinator may end a call that is complete before it hears of the others.
    if (own.failures.empty()) continue;
    CHECK(own.failures == others.failures);
    named += static_cast<int>(own.failures.count(0));
  }
  CHECK(named > 300 / testing::kStride);
}

TEST_CASE("ranks may freeze at any moment, and take part in the next call") {
  int with_victims = 0;
  for (unsigned seed = 0; seed < 1500; seed += testing::kStride) {
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
  CHECK(with_victims > 500 / testing::kStride);
}

TEST_CASE("each partition agrees, and at most one believes that it has saved") {
  for (unsigned seed = 0; seed < 600; seed += testing::kStride) {
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
      const CallResult& own = world.finished(rank).back();
      CHECK(same(own, world.finished(rank < first_part ? 0 : first_part).back()));
      check_knows_its_save(world, own);
    }
  }
}

}  // namespace
}  // namespace cairn::test
