// How ranks become a world: from the environment, through a store, from addresses, within one process.
#include <cairn/tests/support/torch.hpp>
//
#include <netinet/in.h>
#include <sys/socket.h>

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cairn/actors/links/socket.hpp>
#include <cairn/base/error.hpp>
#include <cairn/runtime/rendezvous.hpp>
#include <cairn/runtime/world.hpp>
#include <cairn/tests/support/environment.hpp>
#include <cairn/tests/support/leak_check.hpp>

namespace cairn::testing {
namespace {

using std::chrono::milliseconds;

int free_port() { return split_address(to_string(local_endpoint(listen_on("127.0.0.1", 0)))).port; }

// A store of this process that any number of ranks may use.
c10::intrusive_ptr<c10d::Store> shared_store() { return c10::make_intrusive<c10d::HashStore>(); }

// Runs `body` for each of these ranks on a thread of its own, and gives what each threw: "" for nothing.
std::vector<std::string> on_threads(const std::vector<int>& ranks, const std::function<void(int)>& body) {
  std::vector<std::string> errors(ranks.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        body(ranks[i]);
      } catch (const Error& error) {
        errors[i] = std::string(to_string(error.code())) + ": " + error.what();
      } catch (const std::exception& error) {
        errors[i] = std::string("not an Error: ") + error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return errors;
}

std::string thrown(const std::function<void()>& body) {
  return on_threads({0}, [&](int) { body(); }).front();
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string code(ErrorCode value) { return to_string(value); }

const std::vector<std::string> kNoErrors2(2);
const std::vector<std::string> kNoErrors4(4);

TEST_CASE("the environment is read as the launchers write it") {
  const Environment environment({{"RANK", "2"},
                                 {"WORLD_SIZE", "4"},
                                 {"LOCAL_RANK", "1"},
                                 {"MASTER_ADDR", "localhost"},
                                 {"MASTER_PORT", "29500"},
                                 {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  const Place place = place_in_environment();
  CHECK(place.rank == 2);
  CHECK(place.world_size == 4);
  CHECK(place.local_rank == 1);
  CHECK(place.master_host == "localhost");
  CHECK(place.master_port == 29500);
  CHECK(place.agent_hosts);
}

TEST_CASE("a variable that is missing or malformed is named") {
  const std::map<std::string, std::optional<std::string>> good = {
      {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}};
  const auto error_with = [&](const std::string& name, std::optional<std::string> value) {
    auto values = good;
    values[name] = std::move(value);
    const Environment environment(values);
    const auto error = thrown([] { World::from_environment(); });
    CHECK(contains(error, code(ErrorCode::kInvalidArgument)));
    CHECK(contains(error, name));
  };
  for (const auto* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    error_with(name, std::nullopt);
    error_with(name, "");
  }
  error_with("RANK", "two");
  error_with("RANK", "2");
  error_with("RANK", "-1");
  error_with("RANK", "1x");
  error_with("WORLD_SIZE", "0");
  error_with("WORLD_SIZE", "99999999999999999999");
  error_with("LOCAL_RANK", "x");
  error_with("MASTER_PORT", "0");
  error_with("MASTER_PORT", "65536");
}

TEST_CASE("ranks assemble through a store, also several times") {
  LeakCheck leaks;
  const auto store = shared_store();
  std::set<std::string> incarnations;
  for (int round = 0; round < 3; ++round) {
    std::vector<std::optional<World>> worlds(4);
    CHECK(on_threads({0, 1, 2, 3}, [&](int rank) { worlds[static_cast<std::size_t>(rank)] = World::from_store(store, rank, 4); }) ==
          kNoErrors4);
    for (int rank = 0; rank < 4; ++rank) {
      const auto& world = *worlds[static_cast<std::size_t>(rank)];
      CHECK(world.rank() == rank);
      CHECK(world.size() == 4);
      CHECK(world.incarnation() == worlds[0]->incarnation());
      CHECK_FALSE(world.one_process());
    }
    CHECK(incarnations.insert(worlds[0]->incarnation()).second);
  }
}

TEST_CASE("two worlds live side by side on one store") {
  LeakCheck leaks;
  const auto store = shared_store();
  std::vector<std::vector<World>> worlds(2);
  CHECK(on_threads({0, 1}, [&](int rank) {
          for (int i = 0; i < 2; ++i) worlds[static_cast<std::size_t>(rank)].push_back(World::from_store(store, rank, 2));
        }) == kNoErrors2);
  CHECK(worlds[0][0].incarnation() == worlds[1][0].incarnation());
  CHECK(worlds[0][1].incarnation() == worlds[1][1].incarnation());
  CHECK(worlds[0][0].incarnation() != worlds[0][1].incarnation());
}

TEST_CASE("the trainer's own store serves, and stays usable") {
  LeakCheck leaks;
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  auto server = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  options.isServer = false;
  options.port = server->getPort();
  CHECK(on_threads({0, 1}, [&](int rank) {
          const auto mine = rank == 0 ? server : c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
          const World world = World::from_store(c10::make_intrusive<c10d::PrefixStore>("trainer", mine), rank, 2);
          mine->set("after " + std::to_string(rank), {1});
        }) == kNoErrors2);
  CHECK(server->check({"after 0", "after 1"}));
}

TEST_CASE("a world that does not assemble names who is missing, on every rank that is there") {
  LeakCheck leaks;
  WorldOptions options;
  options.assemble_deadline = milliseconds(300);
  const auto store = shared_store();
  SUBCASE("others than rank 0") {
    for (const auto& error : on_threads({0, 2}, [&](int rank) { World::from_store(store, rank, 5, options); })) {
      CHECK(contains(error, code(ErrorCode::kDeadline)));
      CHECK(contains(error, "ranks 1, 3, 4 did not come"));
    }
  }
  SUBCASE("rank 0") {
    for (const auto& error : on_threads({1, 2}, [&](int rank) { World::from_store(store, rank, 3, options); })) {
      CHECK(contains(error, code(ErrorCode::kDeadline)));
      CHECK(contains(error, "rank 0 did not come"));
    }
  }
}

TEST_CASE("rank 0 that does not even offer its store is named") {
  LeakCheck leaks;
  WorldOptions options;
  options.assemble_deadline = milliseconds(500);
  const Environment environment({{"RANK", "1"},
                                 {"WORLD_SIZE", "2"},
                                 {"LOCAL_RANK", "1"},
                                 {"MASTER_ADDR", "127.0.0.1"},
                                 {"MASTER_PORT", std::to_string(free_port())},
                                 {"TORCHELASTIC_USE_AGENT_STORE", std::nullopt}});
  const auto error = thrown([&] { World::from_environment(options); });
  CHECK(contains(error, code(ErrorCode::kDeadline)));
  CHECK(contains(error, "rank 0"));
  CHECK(contains(error, "MASTER_PORT"));
}

TEST_CASE("ranks that differ in the world's size are told so") {
  LeakCheck leaks;
  WorldOptions options;
  options.assemble_deadline = std::chrono::seconds(20);
  const auto store = shared_store();
  for (const auto& error : on_threads({0, 1}, [&](int rank) { World::from_store(store, rank, rank == 0 ? 3 : 2, options); })) {
    CHECK(contains(error, code(ErrorCode::kMismatch)));
    CHECK(contains(error, "rank 1 has a world of 2 ranks, rank 0 one of 3"));
  }
  // The store remembers nothing that would disturb the next attempt.
  CHECK(on_threads({0, 1}, [&](int rank) { World::from_store(store, rank, 2, options); }) == kNoErrors2);
}

TEST_CASE("a rank that only its own machine can reach is named") {
  const Environment no_secret({{"CAIRN_SECRET_FILE", std::nullopt}, {"CAIRN_SECRET", std::nullopt}});
  const auto store = shared_store();
  const std::string card = "2 another-machine 127.0.0.1:4000 none";
  store->set("cairn/1/card/1", std::vector<std::uint8_t>(card.begin(), card.end()));
  store->add("cairn/1/readers", 1);  // as that rank would have read the verdict
  const auto error = thrown([&] { World::from_store(store, 0, 2); });
  CHECK(contains(error, code(ErrorCode::kInvalidArgument)));
  CHECK(contains(error, "bind_address"));
}

TEST_CASE("rank 0 hosts the store, or shares the trainer's") {
  LeakCheck leaks;
  const int port = free_port();
  c10::intrusive_ptr<c10d::TCPStore> trainers;
  SUBCASE("nobody hosts it yet") {}
  SUBCASE("the trainer hosts it for several") {
    c10d::TCPStoreOptions options;
    options.port = static_cast<std::uint16_t>(port);
    options.isServer = true;
    options.waitWorkers = false;
    options.multiTenant = true;
    trainers = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  }
  SUBCASE("the trainer hosts it for itself") {
    c10d::TCPStoreOptions options;
    options.port = static_cast<std::uint16_t>(port);
    options.isServer = true;
    options.waitWorkers = false;
    trainers = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  }
  // The environment is the process's, the ranks here are threads: each opens the store as it would in a process of its own.
  std::vector<std::string> incarnations(2);
  CHECK(on_threads({0, 1}, [&](int rank) {
          Place place;
          place.rank = rank;
          place.world_size = 2;
          place.master_host = "127.0.0.1";
          place.master_port = port;
          const World world = World::from_store(open_store(place, std::chrono::seconds(20)), rank, 2);
          incarnations[static_cast<std::size_t>(rank)] = world.incarnation();
        }) == kNoErrors2);
  CHECK(incarnations[0] == incarnations[1]);
  CHECK(incarnations[0].size() == 32);
}

TEST_CASE("a world of one needs its store for nobody else") {
  LeakCheck leaks;
  const Environment environment({{"RANK", "0"},
                                 {"WORLD_SIZE", "1"},
                                 {"LOCAL_RANK", std::nullopt},
                                 {"MASTER_ADDR", "127.0.0.1"},
                                 {"MASTER_PORT", std::to_string(free_port())},
                                 {"TORCHELASTIC_USE_AGENT_STORE", std::nullopt}});
  const World world = World::from_environment();
  CHECK(world.size() == 1);
  CHECK(world.local_rank() == 0);
}

TEST_CASE("from addresses, everybody knows the world without asking") {
  LeakCheck leaks;
  std::vector<std::string> addresses;
  {
    std::vector<Socket> holders;
    for (int rank = 0; rank < 2; ++rank) {
      holders.push_back(listen_on("127.0.0.1", 0));
      addresses.push_back(to_string(local_endpoint(holders.back())));
    }
  }
  {
    const World zero = World::from_addresses(0, addresses, "job 1");
    const World one = World::from_addresses(1, addresses, "job 1");
    CHECK(zero.incarnation() == one.incarnation());
    CHECK(one.rank() == 1);
    CHECK(one.size() == 2);
  }
  CHECK(contains(thrown([&] { World::from_addresses(2, addresses, "job 2"); }), code(ErrorCode::kInvalidArgument)));
  CHECK(contains(thrown([&] { World::from_addresses(0, addresses, ""); }), "job id"));
  CHECK(contains(thrown([&] { World::from_addresses(0, {"nowhere"}, "job 3"); }), "nowhere"));
  CHECK(contains(thrown([&] { World::from_addresses(0, {}, "job 3"); }), code(ErrorCode::kInvalidArgument)));
  CHECK(contains(thrown([&] {
                   World::from_addresses(0, {addresses[0], "no-such-host.invalid:1"}, "job 3");
                 }),
                 "no-such-host.invalid"));
}

TEST_CASE("a place that is none, an address that is none") {
  LeakCheck leaks;
  const auto store = shared_store();
  CHECK(contains(thrown([&] { World::from_store(store, 2, 2); }), code(ErrorCode::kInvalidArgument)));
  CHECK(contains(thrown([&] { World::from_store(store, -1, 2); }), code(ErrorCode::kInvalidArgument)));
  CHECK(contains(thrown([&] { World::from_store(store, 0, 0); }), code(ErrorCode::kInvalidArgument)));
  CHECK(contains(thrown([&] { World::from_store({}, 0, 1); }), code(ErrorCode::kInvalidArgument)));
  WorldOptions options;
  options.bind_address = "0.0.0.0";
  CHECK(contains(thrown([&] { World::from_store(store, 0, 1, options); }), "0.0.0.0"));
  options.bind_address = "203.0.113.1";  // nobody's
  CHECK(contains(thrown([&] { World::from_store(store, 0, 1, options); }), "203.0.113.1"));
}

TEST_CASE("worlds within one process") {
  LeakCheck leaks;
  const auto worlds = World::in_process(3);
  REQUIRE(worlds.size() == 3);
  for (int rank = 0; rank < 3; ++rank) {
    CHECK(worlds[static_cast<std::size_t>(rank)].rank() == rank);
    CHECK(worlds[static_cast<std::size_t>(rank)].size() == 3);
    CHECK(worlds[static_cast<std::size_t>(rank)].one_process());
    CHECK(worlds[static_cast<std::size_t>(rank)].incarnation() == worlds[0].incarnation());
  }
  CHECK(World::single().size() == 1);
  CHECK(contains(thrown([] { World::in_process(0); }), code(ErrorCode::kInvalidArgument)));
}

TEST_CASE("shutting down may be asked for twice, by any copy") {
  LeakCheck leaks;
  const World world = World::single();
  const World copy = world;
  CHECK(copy.shutdown(std::chrono::seconds(20)));
  CHECK(world.shutdown(std::chrono::seconds(20)));
}

TEST_CASE("a checkpointer's name is taken once") {
  const World world = World::single();
  world.claim_checkpointer("main");
  CHECK(contains(thrown([&] { world.claim_checkpointer("main"); }), code(ErrorCode::kAlreadyExists)));
  CHECK(contains(thrown([&] { world.claim_checkpointer(""); }), code(ErrorCode::kInvalidArgument)));
  world.release_checkpointer("main");
  world.claim_checkpointer("main");
}

}  // namespace
}  // namespace cairn::testing
