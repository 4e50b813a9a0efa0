// Saves and loads without faults: outcomes and the order of hooks, with any coordinator.
#include "actor_world.hpp"

namespace cairn::test {
namespace {

using Names = std::vector<std::string>;

TEST_CASE("a save commits on every rank, at any world size and with any coordinator") {
  for (const int size : {1, 2, 4, 8}) {
    for (const int coordinator : {0, size - 1}) {
      CAPTURE(size);
      CAPTURE(coordinator);
      ActorWorld world(size);
      CallSettings settings;
      settings.coordinator_rank = coordinator;
      const auto outcomes = world.save(settings);
      for (const auto& outcome : outcomes) {
        CHECK(outcome.ok());
        CHECK(outcome.committed == Committed::kYes);
        CHECK(outcome.save_id == outcomes.front().save_id);
        CHECK_FALSE(outcome.save_id.empty());
      }
      auto& finished = world.rank(coordinator).writer.finished_with;
      REQUIRE(finished.size() == static_cast<std::size_t>(size));
      for (int rank = 0; rank < size; ++rank) {
        REQUIRE(finished[static_cast<std::size_t>(rank)].files.size() == 1);
        CHECK(finished[static_cast<std::size_t>(rank)].files[0].name == "file_" + std::to_string(rank));
        const auto& context = world.rank(rank).writer.contexts.back();
        CHECK(context.rank == rank);
        CHECK(context.world_size == size);
        CHECK(context.is_coordinator == (rank == coordinator));
        CHECK(context.save_id == outcomes.front().save_id);
        CHECK(context.checkpoint_id == "step_100");
      }
      CHECK(world.rank(coordinator).writer.version_seen == "of the planner");
    }
  }
}

// As recorded with real DCP, two ranks, coordinator 0; see the table in docs/protocol.md.
const Names kSaveHooks = {"writer.reset",
                          "begin",
                          "planner.set_up_planner",
                          "writer.set_up_storage_writer",
                          "planner.create_local_plan",
                          "writer.prepare_local_plan",
                          "planner.finish_plan",
                          "writer.write_data",
                          "writer.write_data.future"};
const Names kSaveHooksOfCoordinator = {"writer.reset",
                                       "begin",
                                       "planner.set_up_planner",
                                       "writer.set_up_storage_writer",
                                       "planner.create_local_plan",
                                       "writer.prepare_local_plan",
                                       "planner.create_global_plan",
                                       "writer.prepare_global_plan",
                                       "planner.finish_plan",
                                       "writer.write_data",
                                       "writer.write_data.future",
                                       "writer.finish"};
const Names kLoadHooks = {"reader.reset",
                          "begin",
                          "reader.read_metadata",
                          "planner.set_up_planner",
                          "reader.set_up_storage_reader",
                          "planner.create_local_plan",
                          "reader.prepare_local_plan",
                          "planner.finish_plan",
                          "reader.read_data",
                          "reader.read_data.future"};
const Names kLoadHooksOfCoordinator = {"reader.reset",
                                       "begin",
                                       "reader.read_metadata",
                                       "planner.set_up_planner",
                                       "reader.set_up_storage_reader",
                                       "planner.create_local_plan",
                                       "reader.prepare_local_plan",
                                       "planner.create_global_plan",
                                       "reader.prepare_global_plan",
                                       "planner.finish_plan",
                                       "reader.read_data",
                                       "reader.read_data.future"};

TEST_CASE("hooks run in DCP's order and on DCP's ranks, with a cold and a warm plan cache") {
  for (const int coordinator : {0, 1}) {
    ActorWorld world(2);
    CallSettings settings;
    settings.coordinator_rank = coordinator;
    for (int round = 0; round < 3; ++round) {
      world.clear_scripts();
      world.save(settings);
      CHECK(world.rank(coordinator).script.log() == kSaveHooksOfCoordinator);
      CHECK(world.rank(1 - coordinator).script.log() == kSaveHooks);
      world.clear_scripts();
      world.load(settings);
      CHECK(world.rank(coordinator).script.log() == kLoadHooksOfCoordinator);
      CHECK(world.rank(1 - coordinator).script.log() == kLoadHooks);
    }
  }
}

TEST_CASE("the writer of a coordinator is asked in each save whether it repeats the plans of the last one") {
  ActorWorld world(2);
  const auto& asked = world.rank(0).writer.asked_to_repeat;
  for (int round = 0; round < 2; ++round) world.save();
  for (int rank = 0; rank < 2; ++rank) world.rank(rank).script.plan_version = 1;
  for (int round = 0; round < 2; ++round) world.save();
  REQUIRE(asked.size() == 4);
  // A writer that is not asked in the first save of a plan cannot know it in the second.
  for (const std::size_t first : {0, 2}) {
    CHECK(asked[first].second == 0);
    CHECK(asked[first + 1] == std::pair(asked[first].first, std::size_t{2}));
  }
  CHECK(asked[0].first != asked[2].first);
  CHECK(world.rank(1).writer.asked_to_repeat.empty());
}

TEST_CASE("ranks that keep their plans of a load send none, and each gets its own back") {
  ActorWorld world(3);
  CallSettings settings;
  settings.keeps_local_plans = true;
  settings.coordinator_rank = 1;
  for (int rank = 0; rank < 3; ++rank) world.rank(rank).load_planner.name = "weight of " + std::to_string(rank);
  for (int round = 0; round < 2; ++round) {
    world.clear_scripts();
    for (const auto& outcome : world.load(settings)) REQUIRE(outcome.ok());
    CHECK(world.rank(1).script.log() == kLoadHooksOfCoordinator);
    CHECK(world.rank(1).load_planner.plans_seen == 0);
    for (int rank = 0; rank < 3; ++rank) CHECK(world.rank(rank).load_planner.finished == world.rank(rank).load_planner.name);
  }

  // Ranks whose options are not compared may differ.
  Future<CallResult> outcomes[3];
  for (int rank = 0; rank < 3; ++rank) {
    settings.keeps_local_plans = rank != 2;
    outcomes[rank] = world.start_load(rank, settings);
  }
  for (Future<CallResult>& outcome : outcomes) {
    const FailureMap failures = outcome.get().failures;
    REQUIRE(ranks_of(failures) == std::set<int>{1});
    CHECK(failures.at(1).what.find("rank 2 sent its plan, but the coordinator keeps its own") != std::string::npos);
  }
}

TEST_CASE("Stateful hooks run in the sorted order of all ranks' keys") {
  ActorWorld world(2);
  std::vector<Future<CallResult>> futures;
  CallSettings settings;
  settings.stateful_keys = {"b", "a"};
  futures.push_back(world.start_save(0, settings));
  settings.stateful_keys = {"c", "b"};
  futures.push_back(world.start_save(1, settings));
  for (const auto& outcome : ActorWorld::collect(futures)) CHECK(outcome.ok());
  for (int rank = 0; rank < 2; ++rank) CHECK(world.rank(rank).script.count("begin,a,b,c") == 1);
}

TEST_CASE("a warm plan cache carries the content of bytes objects of the save at hand") {
  ActorWorld world(4);
  for (std::uint64_t round = 1; round <= 4; ++round) {
    CAPTURE(round);
    for (int rank = 0; rank < 4; ++rank) world.rank(rank).script.content = 100 * round + static_cast<std::uint64_t>(rank);
    for (const auto& outcome : world.save()) CHECK(outcome.ok());
    for (int rank = 0; rank < 4; ++rank) {
      const auto expected = 100 * round + static_cast<std::uint64_t>(rank);
      CHECK(world.rank(0).save_planner.contents_seen.at(static_cast<std::size_t>(rank)) == expected);
      CHECK(world.rank(rank).writer.written.back() == expected);
    }
  }
  const std::string trace = world.runtime(1).dump_trace();
  CHECK(trace.find("supervisor sent SameSavePlan to rank 0") != std::string::npos);
  CHECK(trace.find("supervisor handled GlobalSavePlan from rank 0") != std::string::npos);
}

TEST_CASE("with more plans than the cache keeps every rank gets its own plan") {
  ActorWorld world(3);
  for (int round = 0; round < 12; ++round) {
    CallSettings settings;
    settings.coordinator_rank = round / 2 % 3;
    for (int rank = 0; rank < 3; ++rank) world.rank(rank).script.plan_version = round % 5;
    for (const auto& outcome : world.save(settings)) CHECK(outcome.ok());
  }
}

TEST_CASE("`done` may start the next call") {
  ActorWorld world(2);
  std::vector<std::shared_ptr<Promise<CallResult>>> promises;
  for (int rank = 0; rank < 2; ++rank) {
    auto promise = std::make_shared<Promise<CallResult>>();
    promises.push_back(promise);
    world.runtime(rank).save(world.save_call(rank, {}), [&world, rank, promise](CallResult) {
      world.runtime(rank).load(world.load_call(rank, {}), [promise](CallResult second) { promise->set_value(std::move(second)); });
    });
  }
  for (const auto& promise : promises) CHECK(promise->future().get().ok());
}

}  // namespace
}  // namespace cairn::test
