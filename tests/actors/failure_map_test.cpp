// The failure map: whatever a hook throws, on whichever rank, all ranks hear the same failures.
#include "actor_world.hpp"

namespace cairn::test {
namespace {

struct DiskOnFire : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A hook that fails on some ranks.
struct Case {
  std::string hook;
  std::vector<int> ranks;
  Phase phase;
  std::string actor;
};

std::string text_of(const Case& failing, int rank) { return failing.hook + " failed on rank " + std::to_string(rank); }

void arrange(ActorWorld& world, const Case& failing) {
  world.clear_scripts();
  for (const int rank : failing.ranks)
    world.rank(rank).script.on(failing.hook, [text = text_of(failing, rank)] { throw DiskOnFire(text); });
}

void check_outcomes(const std::vector<CallResult>& outcomes, const Case& failing) {
  CAPTURE(failing.hook);
  CHECK(all_equal(outcomes));
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    CAPTURE(rank);
    CHECK(ranks_of(outcomes[rank].failures) == std::set<int>(failing.ranks.begin(), failing.ranks.end()));
    for (const auto& [failed, failure] : outcomes[rank].failures) {
      CHECK(failure.rank == failed);
      CHECK(failure.phase == failing.phase);
      CHECK(failure.kind == FailureKind::kRaised);
      CHECK(failure.type.find("DiskOnFire") != std::string::npos);
      CHECK(failure.what == text_of(failing, failed));
      CHECK(failure.actor == failing.actor);
      CHECK(failure.trace_position > 0);
      // Only the rank that threw has the exception itself.
      CHECK((failure.exception != nullptr) == (failed == static_cast<int>(rank)));
      if (failure.exception) CHECK_THROWS_AS(std::rethrow_exception(failure.exception), DiskOnFire);
    }
  }
}

// Runs the cases one after another in one world, each with a cold and a warm plan cache. A save
// without faults follows each case.
void run_saves(ActorWorld& world, int coordinator, const std::vector<Case>& cases) {
  CallSettings settings;
  settings.coordinator_rank = coordinator;
  for (int round = 0; round < 2; ++round) {
    for (const auto& failing : cases) {
      arrange(world, failing);
      const auto outcomes = world.save(settings);
      check_outcomes(outcomes, failing);
      const bool tried_to_publish = failing.phase == Phase::kFinish;
      for (const auto& outcome : outcomes) CHECK(outcome.committed == (tried_to_publish ? Committed::kUnknown : Committed::kNo));
      for (int rank = 0; rank < world.size(); ++rank) {
        const auto log = world.rank(rank).script.log();
        // While the outcome is unknown, other ranks may publish the files of this one.
        const bool discards = !tried_to_publish || rank == coordinator;
        CHECK(log.back() == (discards ? "writer.discard" : "writer.abandon"));
        CHECK(world.rank(rank).script.count("writer.discard") == (discards ? 1 : 0));
        CHECK(world.rank(rank).script.count("writer.abandon") == 1);
        CHECK(world.rank(rank).script.count("writer.committed") == (tried_to_publish && rank == coordinator ? 1 : 0));
      }
    }
    world.clear_scripts();
    for (const auto& outcome : world.save(settings)) CHECK(outcome.ok());
    for (int rank = 0; rank < world.size(); ++rank) CHECK(world.rank(rank).script.count("writer.abandon") == 0);
  }
}

void run_loads(ActorWorld& world, int coordinator, const std::vector<Case>& cases) {
  CallSettings settings;
  settings.coordinator_rank = coordinator;
  for (int round = 0; round < 2; ++round) {
    settings.keeps_local_plans = round == 1;
    for (const auto& failing : cases) {
      arrange(world, failing);
      check_outcomes(world.load(settings), failing);
    }
    world.clear_scripts();
    for (const auto& outcome : world.load(settings)) CHECK(outcome.ok());
  }
}

std::vector<Case> save_cases(std::vector<int> ranks, int coordinator) {
  return {{"begin", ranks, Phase::kJoin, "planner"},
          {"writer.reset", ranks, Phase::kLocalPlan, "storage"},
          {"planner.set_up_planner", ranks, Phase::kLocalPlan, "planner"},
          {"writer.set_up_storage_writer", ranks, Phase::kLocalPlan, "storage"},
          {"planner.create_local_plan", ranks, Phase::kLocalPlan, "planner"},
          {"writer.prepare_local_plan", ranks, Phase::kLocalPlan, "storage"},
          {"planner.create_global_plan", {coordinator}, Phase::kGlobalPlan, "planner"},
          {"writer.prepare_global_plan", {coordinator}, Phase::kGlobalPlan, "storage"},
          {"planner.finish_plan", ranks, Phase::kWrite, "planner"},
          {"writer.write_data", ranks, Phase::kWrite, "storage"},
          {"writer.write_data.future", ranks, Phase::kWrite, "storage"},
          {"writer.finish", {coordinator}, Phase::kFinish, "storage"}};
}

std::vector<Case> load_cases(std::vector<int> ranks, int coordinator) {
  return {{"begin", ranks, Phase::kJoin, "planner"},
          {"reader.reset", ranks, Phase::kLocalPlan, "storage"},
          {"reader.read_metadata", ranks, Phase::kLocalPlan, "storage"},
          {"planner.set_up_planner", ranks, Phase::kLocalPlan, "planner"},
          {"reader.set_up_storage_reader", ranks, Phase::kLocalPlan, "storage"},
          {"planner.create_local_plan", ranks, Phase::kLocalPlan, "planner"},
          {"reader.prepare_local_plan", ranks, Phase::kLocalPlan, "storage"},
          {"planner.create_global_plan", {coordinator}, Phase::kGlobalPlan, "planner"},
          {"reader.prepare_global_plan", {coordinator}, Phase::kGlobalPlan, "storage"},
          {"planner.finish_plan", ranks, Phase::kRead, "planner"},
          {"reader.read_data", ranks, Phase::kRead, "storage"},
          {"reader.read_data.future", ranks, Phase::kRead, "storage"}};
}

TEST_CASE("B1.4 every hook of a save may fail on every rank, and two at once") {
  for (const bool asynchronous : {false, true}) {
    ActorWorld world(4);
    for (int rank = 0; rank < 4; ++rank) world.rank(rank).script.asynchronous = asynchronous;
    for (int rank = 0; rank < 4; ++rank) run_saves(world, 0, save_cases({rank}, 0));
    run_saves(world, 0, save_cases({1, 3}, 0));
    run_saves(world, 0, save_cases({0, 1, 2, 3}, 0));
  }
}

TEST_CASE("B1.6 every hook of a load may fail on every rank, with any coordinator") {
  for (const bool asynchronous : {false, true}) {
    ActorWorld world(4);
    for (int rank = 0; rank < 4; ++rank) world.rank(rank).script.asynchronous = asynchronous;
    for (int coordinator = 0; coordinator < 4; ++coordinator) {
      run_loads(world, coordinator, load_cases({(coordinator + 1) % 4}, coordinator));
      run_loads(world, coordinator, load_cases({coordinator}, coordinator));
      run_loads(world, coordinator, load_cases({0, 3}, coordinator));
    }
  }
}

TEST_CASE("Stateful hooks run on every rank, even where reset failed") {
  ActorWorld world(2);
  world.rank(1).script.on("writer.reset", [] { throw DiskOnFire("no"); });
  CHECK(ranks_of(world.save()[0].failures) == std::set<int>{1});
  for (int rank = 0; rank < 2; ++rank) CHECK(world.rank(rank).script.count("begin") == 1);
}

TEST_CASE("a committed() that throws means unknown") {
  ActorWorld world(2);
  world.rank(0).script.on("writer.finish", [] { throw DiskOnFire("finish"); });
  world.rank(0).script.on("writer.committed", [] { throw DiskOnFire("committed"); });
  const auto outcomes = world.save();
  CHECK(outcomes[1].committed == Committed::kUnknown);
  CHECK(outcomes[1].failures.at(0).what == "finish");
}

TEST_CASE("a planner that returns too few plans or an invalid one fails its own rank") {
  ActorWorld world(2);
  world.rank(0).save_planner.drop_a_plan = true;
  auto outcomes = world.save();
  CHECK(all_equal(outcomes));
  CHECK(testing::only_failure(outcomes[1].failures, 0) ==
        testing::Saying{ErrorCode::kMismatch, "create_global_plan returned 1 plans for 2 ranks"});

  world.rank(0).save_planner.drop_a_plan = false;
  world.rank(0).save_planner.break_a_plan = true;
  outcomes = world.save();
  REQUIRE(ranks_of(outcomes[1].failures) == std::set<int>{0});
  CHECK(outcomes[1].failures.at(0).code == ErrorCode::kInvalidArgument);
  CHECK(outcomes[1].failures.at(0).phase == Phase::kGlobalPlan);

  world.rank(0).save_planner.break_a_plan = false;
  CHECK(world.save()[1].ok());
}

TEST_CASE("ranks that saw different checkpoints do not load") {
  ActorWorld world(3);
  world.rank(1).script.metadata_save_id = "another save";
  const auto outcomes = world.load();
  CHECK(all_equal(outcomes));
  REQUIRE(ranks_of(outcomes[0].failures) == std::set<int>{0, 1, 2});
  for (const auto& [rank, failure] : outcomes[0].failures) CHECK(failure.code == ErrorCode::kChanged);
  CHECK(outcomes[0].failures.at(1).what.find("another save") != std::string::npos);
}

}  // namespace
}  // namespace cairn::test
