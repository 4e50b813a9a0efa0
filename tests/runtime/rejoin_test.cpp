// Survivors that continue in a smaller world without a restart.
#include <cairn/tests/support/torch.hpp>

#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <cairn/actors/links/socket.hpp>
#include <cairn/runtime/cairn.hpp>
#include <cairn/tests/runtime/rank_threads.hpp>
#include <cairn/tests/support/failure_maps.hpp>
#include <cairn/tests/support/leak_check.hpp>
#include <cairn/tests/support/sample_state.hpp>
#include <cairn/tests/support/temporary_directory.hpp>
#include <cairn/tests/support/thrown.hpp>

using namespace cairn;
using namespace cairn::testing;

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

WorldOptions short_of_patience() {
  WorldOptions options;
  options.runtime.connect_deadline = milliseconds(500);
  options.assemble_deadline = seconds(60);
  return options;
}

struct InMemory {
  static std::vector<World> make(int size) { return World::in_process(size, short_of_patience()); }
};
std::vector<World> through_a_store(int size, const WorldOptions& options) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::optional<World>> made(static_cast<std::size_t>(size));
  all_succeed(size, [&](int rank) { made[static_cast<std::size_t>(rank)] = World::from_store(store, rank, size, options); });
  std::vector<World> worlds;
  for (auto& world : made) worlds.push_back(*world);
  return worlds;
}
struct OverTcp {
  static std::vector<World> make(int size) { return through_a_store(size, short_of_patience()); }
};
struct OverTls {
  static std::vector<World> make(int size) {
    WorldOptions options = short_of_patience();
    options.secret = "nobody could guess these bytes";
    return through_a_store(size, options);
  }
};
struct FromAddresses {
  static std::vector<World> make(int size) {
    std::vector<std::string> addresses;
    {
      std::vector<Socket> holders;
      for (int rank = 0; rank < size; ++rank) {
        holders.push_back(listen_on("127.0.0.1", 0));
        addresses.push_back(to_string(local_endpoint(holders.back())));
      }
    }
    std::vector<World> worlds;
    for (int rank = 0; rank < size; ++rank) worlds.push_back(World::from_addresses(rank, addresses, "a job", short_of_patience()));
    return worlds;
  }
};

// Returns a state like `common_state`, marked with its generation.
StateDict survivor_state(int generation, const World& world) {
  return {
      {"sharded", ShardedTensor::distribute(counting({20, 20}, 1000.0 * generation), over_all_ranks(world.size()), world.rank())},
      {"replicated", counting({10, 10}, generation)},
      {"bytes", c10::IValue(c10::List<std::int64_t>({1, 2, 3, 4}))}};
}

void check_holds(int generation, Checkpointer& checkpointer, const std::string& id) {
  StateDict loaded = survivor_state(0, checkpointer.world());
  checkpointer.load(loaded, id);
  CHECK(same_values(loaded, survivor_state(generation, checkpointer.world())));
}

World& world_at(std::vector<World>& worlds, int rank) { return worlds[static_cast<std::size_t>(rank)]; }

}  // namespace

TEST_CASE_TEMPLATE("survivors save and load in ever smaller worlds as ranks are lost", Kind, InMemory, OverTcp, OverTls,
                   FromAddresses) {
  LeakCheck leaks;
  TemporaryDirectory directory;
  const std::string id = directory.path() + "/checkpoint";
  std::vector<World> worlds = Kind::make(4);
  std::set<std::string> incarnations{world_at(worlds, 0).incarnation()};
  int generation = 1;
  all_succeed({0, 1, 2, 3},
              [&](int rank) { Checkpointer(world_at(worlds, rank)).save(survivor_state(1, world_at(worlds, rank)), id); });
  for (const int leaves : {2, 0, 1}) {
    const int size = static_cast<int>(worlds.size());
    CAPTURE(size);
    std::vector<int> others;
    for (int rank = 0; rank < size; ++rank)
      if (rank != leaves) others.push_back(rank);
    world_at(worlds, leaves).shutdown(seconds(60));
    std::vector<std::optional<World>> smaller(others.size());
    all_succeed(others, [&](int rank) {
      World& world = world_at(worlds, rank);
      Checkpointer checkpointer(world);
      SaveOptions options;
      options.coordinator_rank = others.front();
      const FailureMap failures = failures_of([&] { checkpointer.save(survivor_state(generation + 1, world), id, options); });
      const auto survivors = world.survivors(failures);
      CHECK(survivors == others);
      const World next = world.rejoin(survivors);
      CHECK(next.size() == size - 1);
      CHECK(survivors[static_cast<std::size_t>(next.rank())] == rank);
      CHECK(next.one_process() == (world.one_process() || size == 2));
      smaller[static_cast<std::size_t>(next.rank())] = next;
      // The old checkpointer belongs to the old world and can no longer save.
      CHECK_THROWS_AS(checkpointer.save(survivor_state(0, world), id), Error);
      Checkpointer again(next);
      check_holds(generation, again, id);
      again.save(survivor_state(generation + 1, next), id);
      check_holds(generation + 1, again, id);
    });
    ++generation;
    worlds.clear();
    for (auto& world : smaller) worlds.push_back(*world);
    for (const auto& world : worlds) CHECK(world.incarnation() == worlds.front().incarnation());
    CHECK(incarnations.insert(worlds.front().incarnation()).second);
  }
}

TEST_CASE("survivors may take other ranks than their order has it") {
  std::vector<World> worlds = World::in_process(3);
  all_succeed({0, 2}, [&](int rank) {
    const World next = world_at(worlds, rank).rejoin({2, 0});
    CHECK(next.rank() == (rank == 2 ? 0 : 1));
  });
}

TEST_CASE("survivors exclude lost and silent ranks only") {
  const World world = World::in_process(5).front();
  FailureMap failures;
  failures[0].kind = FailureKind::kRaised;
  failures[1].kind = FailureKind::kLost;
  failures[2].kind = FailureKind::kBusy;
  failures[4].kind = FailureKind::kSilent;
  CHECK(world.survivors(failures) == std::vector<int>{0, 2, 3});
  CHECK(world.survivors({}) == std::vector<int>{0, 1, 2, 3, 4});
}

TEST_CASE("survivors that do not come are named") {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::optional<World>> worlds(3);
  all_succeed({0, 1, 2}, [&](int rank) {
    WorldOptions own = short_of_patience();
    if (rank == 0) own.assemble_deadline = milliseconds(300);
    worlds[static_cast<std::size_t>(rank)] = World::from_store(store, rank, 3, own);
  });
  const Thrown thrown = thrown_by([&] { worlds[0]->rejoin({0, 2}); });
  CHECK(thrown.code == ErrorCode::kDeadline);
  CHECK_MESSAGE(thrown.says("waiting for rank 1 to join"), thrown.what);  // the rank in the new world
}

TEST_CASE("a survivor that finds nobody where its new rank 0 is to be says so") {
  std::vector<World> worlds = OverTcp::make(3);
  for (const int absent : {0, 1}) worlds[static_cast<std::size_t>(absent)].shutdown(seconds(60));
  WorldOptions options = short_of_patience();
  options.assemble_deadline = milliseconds(300);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::optional<World>> made(2);
  all_succeed({0, 1}, [&](int rank) { made[static_cast<std::size_t>(rank)] = World::from_store(store, rank, 2, options); });
  for (const bool gone : {false, true}) {  // false: rank 0 is still in the old world; true: nobody listens
    CAPTURE(gone);
    if (gone) made[0]->shutdown(seconds(60));
    const Thrown thrown = thrown_by([&] { made[1]->rejoin({0, 1}); });
    CHECK(thrown.code == ErrorCode::kDeadline);
    CHECK_MESSAGE(thrown.says("rank 0"), thrown.what);
  }
}

TEST_CASE_TEMPLATE("rejoin waits for late ranks, and works once for a world", Kind, OverTcp, OverTls) {
  LeakCheck leaks;
  std::vector<World> worlds = Kind::make(3);
  // Rank 0 rejoins only after rank 2's connection was refused because rank 0 was still in the old
  // world.
  std::thread late([&] {
    while (worlds[0].dump_trace().find("refused: another incarnation") == std::string::npos) std::this_thread::yield();
    CHECK(worlds[0].rejoin({0, 2}).rank() == 0);
  });
  CHECK(worlds[2].rejoin({0, 2}).rank() == 1);
  late.join();
  const Thrown thrown = thrown_by([&] { worlds[2].rejoin({0, 2}); });
  CHECK(thrown.code == ErrorCode::kPrecondition);
}

TEST_CASE("invalid lists are refused, and the world is left as it is") {
  TemporaryDirectory directory;
  std::vector<World> worlds = World::in_process(2);
  for (const auto& [list, part] : std::vector<std::pair<std::vector<int>, std::string>>{{{}, "not among the survivors"},
                                                                                        {{1}, "not among the survivors"},
                                                                                        {{0, 0}, "twice"},
                                                                                        {{0, 2}, "rank 2"},
                                                                                        {{0, -1}, "rank -1"}}) {
    const Thrown thrown = thrown_by([&, wanted = list] { worlds[0].rejoin(wanted); });
    CHECK(thrown.code == ErrorCode::kInvalidArgument);
    CHECK_MESSAGE(thrown.says(part), thrown.what);
  }
  all_succeed({0, 1}, [&](int rank) {
    CHECK_NOTHROW(
        Checkpointer(world_at(worlds, rank)).save(survivor_state(1, world_at(worlds, rank)), directory.path() + "/checkpoint"));
  });
}
