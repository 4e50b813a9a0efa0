// Mismatched calls, deadlines, shutdown during a call, and actors that die.
#include "actor_world.hpp"

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>

#include <cairn/actors/caf_system.hpp>
#include <cairn/tests/support/thrown.hpp>

namespace cairn::test {
namespace {

using std::chrono::milliseconds;
using testing::thrown_by;

// The deadline that tests let pass. Far above the time that several ranks need, on a busy machine,
// for the steps before it.
constexpr milliseconds kDeadline{1000};

// --- joining -------------------------------------------------------------------------------------

TEST_CASE("a save on one rank and a load on another") {
  ActorWorld world(2);
  const auto outcomes = ActorWorld::collect({world.start_save(0), world.start_load(1)});
  CHECK(all_equal(outcomes));
  CHECK(outcomes[0].failures.at(1).code == ErrorCode::kMismatch);
  CHECK(outcomes[0].failures.at(1).what.find("load") != std::string::npos);
}

TEST_CASE("ranks that name different coordinators fail at once, and the next call works") {
  RuntimeOptions options;
  options.join_deadline = std::chrono::hours(1);
  for (const std::vector<int>& named : {std::vector<int>{0, 1, 2}, {1, 1, 0}, {2, 8, 2}}) {
    ActorWorld world(3, options);
    std::vector<Future<CallResult>> futures;
    for (int rank = 0; rank < 3; ++rank) {
      CallSettings settings;
      settings.coordinator_rank = named[static_cast<std::size_t>(rank)];
      futures.push_back(world.start_save(rank, settings));
    }
    const auto outcomes = ActorWorld::collect(futures);
    CHECK(all_equal(outcomes));
    CHECK_FALSE(outcomes[0].ok());
    CHECK(world.save()[0].ok());
  }
}

TEST_CASE("a call whose Join cannot be sent fails on all ranks") {
  ActorWorld world(2);
  CallSettings settings;
  settings.checkpoint_id = std::string(100 * 1024, 'x');
  const auto outcomes = ActorWorld::collect({world.start_save(0), world.start_save(1, settings)});
  CHECK(all_equal(outcomes));
  CHECK(testing::only_failure(outcomes[0].failures, 1) == testing::Saying{ErrorCode::kInvalidArgument, "Join cannot be sent"});
  for (const auto& later : world.save()) CHECK(later.ok());
}

TEST_CASE("more checkpointers than are kept: save ids are never given twice") {
  ActorWorld world(1);
  std::set<std::string> ids;
  int saves = 0;
  for (int round = 0; round < 2; ++round) {
    for (int which = 0; which < 300; ++which) {
      CallSettings settings;
      settings.checkpointer = "checkpointer " + std::to_string(which);
      ids.insert(world.start_save(0, settings).get().save_id);
      ++saves;
    }
  }
  CHECK(ids.size() == static_cast<std::size_t>(saves));
}

TEST_CASE("a rank that never calls is named when the join deadline has passed") {
  RuntimeOptions options;
  options.join_deadline = kDeadline;
  ActorWorld world(4, options);
  std::vector<Future<CallResult>> futures;
  for (const int rank : {0, 1, 3}) futures.push_back(world.start_save(rank));
  const auto outcomes = ActorWorld::collect(futures);
  CHECK(all_equal(outcomes));
  REQUIRE(ranks_of(outcomes[0].failures) == std::set<int>{2});
  CHECK(outcomes[0].failures.at(2).kind == FailureKind::kSilent);
  CHECK(outcomes[0].failures.at(2).code == ErrorCode::kDeadline);
  CHECK(outcomes[0].failures.at(2).what.find("ranks 0, 1, 3 did") != std::string::npos);
}

// --- phase deadlines -----------------------------------------------------------------------------

TEST_CASE("a rank whose hook does not end is silent, and its call ends with the hook") {
  RuntimeOptions options;
  options.phase_deadline = kDeadline;
  for (const std::string hook : {"planner.create_local_plan", "writer.write_data"}) {
    ActorWorld world(3, options);
    Gate gate;
    world.rank(1).script.on(hook, [&gate] { gate.pass(); });
    auto stuck = world.start_save(1);
    auto first = world.start_save(0);
    auto last = world.start_save(2);
    const auto outcome = first.get();
    CHECK((last.get().failures == outcome.failures));
    REQUIRE(ranks_of(outcome.failures) == std::set<int>{1});
    CHECK(outcome.failures.at(1).kind == FailureKind::kSilent);
    CHECK_FALSE(stuck.ready());
    gate.open();
    CHECK((stuck.get().failures == outcome.failures));
    CHECK(world.rank(1).script.count("writer.abandon") == 1);
  }
}

// --- the interface -------------------------------------------------------------------------------

TEST_CASE("bad configurations and calls are refused at once") {
  const auto system = ActorSystem::create(1);
  const auto refused = [&](const std::function<void(RankConfig&)>& change) {
    RankConfig bad = config_of(0, 1);
    change(bad);
    return thrown_by([&] { const RankRuntime runtime(system, bad, nullptr); }).code == ErrorCode::kInvalidArgument;
  };
  CHECK(refused([](RankConfig& bad) { bad.rank = 1; }));
  CHECK(refused([](RankConfig& bad) { bad.world_size = 2; }));
  CHECK(refused([](RankConfig& bad) { bad.incarnation = "short"; }));
  CHECK(refused([](RankConfig& bad) { bad.options.frame_bytes_max = 0; }));
  CHECK(refused([](RankConfig& bad) { bad.options.message_bytes_max = 0; }));
  CHECK(refused([](RankConfig& bad) { bad.options.heartbeat_timeout = milliseconds(0); }));

  ActorWorld world(1);
  SaveCall call = world.save_call(0, {});
  call.executor = nullptr;
  CHECK_THROWS_AS(world.runtime(0).save(call, {}), Error);
  call = world.save_call(0, {});
  call.coordinator_rank = 1;
  CHECK_THROWS_AS(world.runtime(0).save(call, {}), Error);
}

TEST_CASE("one call per checkpointer at a time") {
  ActorWorld world(1);
  Gate gate;
  world.rank(0).script.on("begin", [&gate] { gate.pass(); });
  auto first = world.start_save(0);
  CHECK(thrown_by([&] { world.start_save(0); }).code == ErrorCode::kPrecondition);
  gate.open();
  CHECK(first.get().ok());
  CHECK(world.start_save(0).get().ok());
}

// --- shutting down -------------------------------------------------------------------------------

TEST_CASE("shutting down a rank in the middle ends the call on all ranks") {
  for (const int leaving : {0, 1}) {
    ActorWorld world(3);
    Gate gate;
    world.rank(2).script.on("planner.create_local_plan", [&gate] { gate.pass(); });
    std::vector<Future<CallResult>> futures;
    for (int rank = 0; rank < 3; ++rank) futures.push_back(world.start_save(rank));
    gate.wait_until_reached();
    CHECK(world.runtime(leaving).shutdown(std::chrono::minutes(1)));
    gate.open();
    for (const auto& outcome : ActorWorld::collect(futures)) {
      REQUIRE(ranks_of(outcome.failures) == std::set<int>{leaving});
      CHECK(outcome.failures.at(leaving).kind == FailureKind::kCancelled);
      CHECK(outcome.committed == Committed::kNo);
    }
    CHECK_THROWS_AS(world.start_save(leaving), Error);
  }
}

TEST_CASE("shutting down while others wait to join") {
  ActorWorld world(3);
  auto waiting = world.start_save(1);
  auto leaving = world.start_save(2);
  CHECK(world.runtime(2).shutdown(std::chrono::minutes(1)));
  CHECK(leaving.get().failures.at(2).kind == FailureKind::kCancelled);
  // Rank 1 is told, or rank 0 learns that rank 2 is gone when rank 0 itself joins.
  auto last = world.start_save(0);
  world.shut_down();
  CHECK_FALSE(waiting.get().ok());
  CHECK_FALSE(last.get().ok());
}

TEST_CASE("a shutdown that gives up on a hook says so; `done` follows the hook") {
  auto world = std::make_unique<ActorWorld>(1);
  Gate gate;
  world->rank(0).script.on("writer.write_data", [&gate] { gate.pass(); });
  auto outcome = world->start_save(0);
  gate.wait_until_reached();
  CHECK_FALSE(world->runtime(0).shutdown(milliseconds(0)));
  CHECK_FALSE(outcome.ready());
  gate.open();
  const auto ended = outcome.get();
  CHECK(ended.failures.at(0).kind == FailureKind::kBusy);
  CHECK(ended.committed == Committed::kUnknown);
}

TEST_CASE("a task that outlives its runtime starts no further hook") {
  auto world = std::make_unique<ActorWorld>(1);
  Gate gate;
  bool has_written = false;
  world->rank(0).script.on("planner.finish_plan", [&gate] { gate.pass(); });
  world->rank(0).script.on("writer.write_data", [&has_written] { has_written = true; });
  auto outcome = world->start_save(0);
  gate.wait_until_reached();
  CHECK_FALSE(world->runtime(0).shutdown(milliseconds(0)));
  gate.open();
  CHECK_FALSE(outcome.get().ok());
  CHECK_FALSE(has_written);
}

TEST_CASE("runtimes come and go, with nothing left behind") {
  auto system = ActorSystem::create(2);
  auto& caf_system = system->caf_system();
  const auto before = caf_system.registry().running();
  RuntimeOptions options;
  options.trace_ring_bytes = 1u << 16;
  for (int round = 0; round < 20; ++round) {
    const auto links = make_memory_links(3);
    std::vector<std::unique_ptr<RankRuntime>> runtimes;
    for (int rank = 0; rank < 3; ++rank)
      runtimes.push_back(std::make_unique<RankRuntime>(system, config_of(rank, 3, options), links));
    for (auto& runtime : runtimes) CHECK(runtime->shutdown(std::chrono::minutes(1)));
  }
  caf_system.registry().await_running_count_equal(before);
}

TEST_CASE("the actors' threads leave signals to the program's own") {
  const auto tasks = [] {
    std::set<std::string> paths;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) paths.insert(entry.path());
    return paths;
  };
  const auto before = tasks();
  const auto system = ActorSystem::create(2);
  std::size_t started = 0;
  for (const auto& task : tasks()) {
    if (before.count(task) != 0) continue;
    ++started;
    std::ifstream status(task + "/status");
    std::string line;
    while (std::getline(status, line) && line.rfind("SigBlk:", 0) != 0) continue;
    const auto mask = std::stoull(line.substr(7), nullptr, 16);
    CHECK((mask >> (SIGTERM - 1) & 1) == 1);
  }
  CHECK(started >= 3);  // two scheduler threads and one network thread
}

// --- actors that die -----------------------------------------------------------------------------

TEST_CASE("an actor that dies now and then, between saves that succeed, is replaced each time") {
  RuntimeOptions options;
  options.child_restarts_max = 2;
  ActorWorld world(1, options);
  for (int round = 0; round < 4; ++round) {
    world.rank(0).executor.refuse(1);
    CHECK_FALSE(world.save()[0].ok());
    CHECK(world.save()[0].ok());
  }
}

TEST_CASE("an actor that dies too often is not replaced; calls still end") {
  RuntimeOptions options;
  options.child_restarts_max = 2;
  ActorWorld world(1, options);
  for (int round = 0; round < 3; ++round) {
    world.rank(0).executor.refuse(1);
    CHECK(world.save()[0].failures.at(0).kind == FailureKind::kInternal);
  }
  CHECK(world.save()[0].failures.at(0).kind == FailureKind::kInternal);
}

}  // namespace
}  // namespace cairn::test
