// How ranks form a world: from the environment, through a store, from addresses, or within one
// process.
#include <cairn/tests/support/skipped.hpp>
#include <cairn/tests/support/torch.hpp>
//
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cairn/actors/links/socket.hpp>
#include <cairn/actors/links/tcp_links.hpp>
#include <cairn/base/error.hpp>
#include <cairn/base/save_id.hpp>
#include <cairn/runtime/checkpoints/checkpointer.hpp>
#include <cairn/runtime/launch/rendezvous.hpp>
#include <cairn/runtime/launch/tcp_store.hpp>
#include <cairn/runtime/worlds/world.hpp>
#include <cairn/tests/runtime/rank_threads.hpp>
#include <cairn/tests/runtime/store_leak_check.hpp>
#include <cairn/tests/support/captured_log.hpp>
#include <cairn/tests/support/descriptor_limit.hpp>
#include <cairn/tests/support/environment.hpp>
#include <cairn/tests/support/faulty_storage.hpp>
#include <cairn/tests/support/free_port.hpp>
#include <cairn/tests/support/sample_state.hpp>
#include <cairn/tests/support/temporary_directory.hpp>

namespace cairn::testing {
namespace {

using std::chrono::milliseconds;

// Returns a store of this process that any number of ranks may use.
c10::intrusive_ptr<c10d::Store> shared_store() { return c10::make_intrusive<c10d::HashStore>(); }

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Sets the variables of this rank, whose rank 0 hosts the store at a port of this machine. `others`
// replace some of them.
Environment launched_as(int rank, int world_size, int port, const std::map<std::string, std::optional<std::string>>& others = {}) {
  std::map<std::string, std::optional<std::string>> variables = others;
  variables.insert({{"RANK", std::to_string(rank)},
                    {"WORLD_SIZE", std::to_string(world_size)},
                    {"LOCAL_RANK", std::to_string(rank)},
                    {"MASTER_ADDR", "127.0.0.1"},
                    {"MASTER_PORT", std::to_string(port)},
                    {"TORCHELASTIC_USE_AGENT_STORE", std::nullopt}});
  return Environment(variables);
}

// Returns the place that these variables describe.
Place place_of(int rank, int world_size, int port) {
  Place place;
  place.rank = rank;
  place.world_size = world_size;
  place.master_host = "127.0.0.1";
  place.master_port = port;
  return place;
}

TEST_CASE("a variable that is missing or malformed is named") {
  const std::map<std::string, std::optional<std::string>> good = {
      {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}};
  const auto error_with = [&](const std::string& name, std::optional<std::string> value) {
    auto values = good;
    values[name] = std::move(value);
    const Environment environment(values);
    const auto error = thrown_by([] { World::from_environment(); });
    CHECK(error == Saying{ErrorCode::kInvalidArgument, name});
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
  StoreLeakCheck leaks;
  const auto store = shared_store();
  std::set<std::string> incarnations;
  for (int round = 0; round < 3; ++round) {
    std::vector<std::optional<World>> worlds(4);
    all_succeed(4, [&](int rank) { worlds[static_cast<std::size_t>(rank)] = World::from_store(store, rank, 4); });
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
  StoreLeakCheck leaks;
  const auto store = shared_store();
  std::vector<std::vector<World>> worlds(2);
  all_succeed(2, [&](int rank) {
    for (int i = 0; i < 2; ++i) worlds[static_cast<std::size_t>(rank)].push_back(World::from_store(store, rank, 2));
  });
  CHECK(worlds[0][0].incarnation() == worlds[1][0].incarnation());
  CHECK(worlds[0][1].incarnation() == worlds[1][1].incarnation());
  CHECK(worlds[0][0].incarnation() != worlds[0][1].incarnation());
}

TEST_CASE("a job that torchrun restarts meets in its agent's store") {
  StoreLeakCheck leaks;
  const auto agents = hosted_store();
  const auto store_of = [&](int rank, int restarts) {
    Place place = place_of(rank, 2, agents->getPort());
    place.agent_hosts = true;
    place.restarts = restarts;
    return open_store(place, std::chrono::minutes(1));
  };
  WorldOptions impatient;
  impatient.assemble_deadline = milliseconds(300);
  CHECK(thrown_by([&] { World::from_store(store_of(1, 0), 1, 2, impatient); }).says("rank 0 did not come"));
  all_succeed(2, [&](int rank) { World::from_store(store_of(rank, 1), rank, 2); });
}

TEST_CASE("a world that does not assemble names missing ranks on every other rank") {
  StoreLeakCheck leaks;
  WorldOptions options;
  options.assemble_deadline = milliseconds(300);
  const auto store = shared_store();
  SUBCASE("others than rank 0") {
    for (const auto& error : on_threads({0, 2}, [&](int rank) { World::from_store(store, rank, 5, options); })) {
      CHECK(error == Saying{ErrorCode::kDeadline, "ranks 1, 3, 4 did not come"});
    }
  }
  SUBCASE("rank 0") {
    for (const auto& error : on_threads({1, 2}, [&](int rank) { World::from_store(store, rank, 3, options); })) {
      CHECK(error == Saying{ErrorCode::kDeadline, "rank 0 did not come"});
    }
  }
}

TEST_CASE("rank 0 that does not even offer its store is named") {
  StoreLeakCheck leaks;
  WorldOptions options;
  options.assemble_deadline = milliseconds(500);
  const Environment environment = launched_as(1, 2, free_port());
  const auto error = thrown_by([&] { World::from_environment(options); });
  CHECK(error == Saying{ErrorCode::kDeadline, "rank 0"});
  CHECK(error.says("did not come or has failed"));
  CHECK(error.says("MASTER_PORT"));
}

TEST_CASE("a world that does not assemble names a rank that came twice") {
  const Environment no_secret({{"CAIRN_SECRET_FILE", std::nullopt}, {"CAIRN_SECRET", std::nullopt}});
  WorldOptions options;
  options.assemble_deadline = milliseconds(100);
  const auto store = shared_store();
  // Rank 1 is here, and a second process of that rank waits for the others in a rendezvous of its
  // own.
  const std::string card = "1 3 a-machine 127.0.0.1:4000 none";
  const auto number = store->add("cairn/1/arrivals", 1);
  store->set("cairn/1/arrival/" + std::to_string(number), std::vector<std::uint8_t>(card.begin(), card.end()));
  store->add("cairn/1/readers", 1);  // as that rank would after it has read the verdict
  store->add("cairn/joins/1", 2);
  const auto error_of_first = thrown_by([&] { World::from_store(store, 0, 3, options); });
  CHECK(error_of_first == Saying{ErrorCode::kDeadline, "rank 2 did not come"});
  CHECK(error_of_first.says("rank 1 came more than once: see whether two processes have the same RANK"));
  const auto error_of_second = thrown_by([&] { World::from_store(store, 1, 3, options); });
  CHECK(error_of_second.says("ranks 0, 2 did not come"));
  CHECK(error_of_second.says("rank 1 came more than once"));
  CHECK(error_of_second.says("a rank also comes again for its next world, or to try again"));
}

TEST_CASE("a silent program at MASTER_PORT that ends does not end the ranks") {
  Socket mute = listen_on("127.0.0.1", 0);
  const std::string address = to_string(local_endpoint(mute));
  const Place place = place_of(1, 2, split_address(address).port);
  Thrown error;
  std::thread rank([&] { error = thrown_by([&] { open_store(place, milliseconds(500)); }); });
  pollfd question{mute.get(), POLLIN, 0};
  ::poll(&question, 1, -1);
  rank.join();
  mute.reset();  // resets all waiting connections
  CHECK(error == Saying{ErrorCode::kDeadline, address});
  CHECK_MESSAGE(error.says("see which program it is"), error.what);
}

TEST_CASE("rank 0 hosts the store where it first found one that was about to end") {
  StoreLeakCheck leaks;
  Socket dying = listen_on("127.0.0.1", 0);
  const Place place = place_of(0, 1, split_address(to_string(local_endpoint(dying))).port);
  std::thread ender([&] {
    pollfd question{dying.get(), POLLIN, 0};
    ::poll(&question, 1, -1);
    dying.reset();
  });
  auto store = open_store(place, std::chrono::seconds(60));
  ender.join();
  try {
    store->set("here", std::vector<std::uint8_t>{1});
  } catch (const std::exception&) {  // the dying listener had received this connection as well
    store = open_store(place, std::chrono::seconds(60));
    store->set("here", std::vector<std::uint8_t>{1});
  }
  CHECK(store->check({"here"}));
}

TEST_CASE("ranks that differ in the world's size are told so") {
  StoreLeakCheck leaks;
  WorldOptions options;
  options.assemble_deadline = std::chrono::seconds(20);
  const auto store = shared_store();
  for (const auto& error : on_threads({0, 1}, [&](int rank) { World::from_store(store, rank, rank == 0 ? 3 : 2, options); })) {
    CHECK(error == Saying{ErrorCode::kMismatch, "rank 1 expects a world of 2 ranks, but rank 0 expects 3"});
  }
  // The store keeps nothing that would disturb the next attempt.
  all_succeed(2, [&](int rank) { World::from_store(store, rank, 2, options); });
}

TEST_CASE("rank 0 hosts no store at a host that nobody knows, and says so") {
  StoreLeakCheck leaks;
  WorldOptions options;
  options.assemble_deadline = milliseconds(200);
  const auto error_at = [&](const std::string& host) {
    const Environment environment = launched_as(0, 2, free_port(), {{"MASTER_ADDR", host}});
    return thrown_by([&] { World::from_environment(options); });
  };
  const std::string never_a_name(70, 'x');  // longer than a part of a name may be, so no server is asked
  const auto unknown = error_at(never_a_name);
  CHECK(unknown == Saying{ErrorCode::kUnavailable, "looking up host '" + never_a_name + "'"});
  CHECK_MESSAGE(unknown.says("MASTER_ADDR"), unknown.what);
  const auto malformed = error_at("[10.0.0.1");
  CHECK(malformed == Saying{ErrorCode::kInvalidArgument, "[10.0.0.1"});
}

TEST_CASE("a rank that cannot look up rank 0's host says so at the deadline") {
  Place place = place_of(1, 2, free_port());
  place.master_host = std::string(70, 'x');  // as above
  const auto error = thrown_by([&] { open_store(place, milliseconds(50)); });
  CHECK(error == Saying{ErrorCode::kDeadline, "looking up host '" + place.master_host + "'"});
  CHECK_MESSAGE(error.says("MASTER_ADDR"), error.what);
}

TEST_CASE("a rank that only its own machine can reach is named") {
  const Environment no_secret({{"CAIRN_SECRET_FILE", std::nullopt}, {"CAIRN_SECRET", std::nullopt}});
  const auto store = shared_store();
  const std::string card = "1 2 another-machine 127.0.0.1:4000 none";
  const auto number = store->add("cairn/1/arrivals", 1);
  store->set("cairn/1/arrival/" + std::to_string(number), std::vector<std::uint8_t>(card.begin(), card.end()));
  store->add("cairn/1/readers", 1);  // as that rank would after it has read the verdict
  const auto error = thrown_by([&] { World::from_store(store, 0, 2); });
  CHECK(error == Saying{ErrorCode::kInvalidArgument, "CAIRN_SECRET_FILE"});
}

TEST_CASE("a rank in another container of the same machine is told how to listen elsewhere") {
  const Environment no_variables(
      {{"CAIRN_SECRET_FILE", std::nullopt}, {"CAIRN_SECRET", std::nullopt}, {"CAIRN_BIND_ADDRESS", std::nullopt}});
  const auto store = shared_store();
  WorldOptions options;
  std::string advice;
  SUBCASE("without a secret, to set one") { advice = "CAIRN_SECRET_FILE"; }
  SUBCASE("with a secret, to listen elsewhere") {
    options.secret = "a secret of these two ranks";
    advice = "CAIRN_BIND_ADDRESS";
  }
  // Gives this thread its own network namespace with a working loopback.
  const auto leave_network = [] {
    if (::unshare(CLONE_NEWNET) != 0) return false;
    const int control = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ifreq request{};
    std::strcpy(request.ifr_name, "lo");
    request.ifr_flags = IFF_UP;
    const bool up = ::ioctl(control, SIOCSIFFLAGS, &request) == 0;
    ::close(control);
    return up;
  };
  std::promise<bool> left;
  std::shared_future<bool> apart = left.get_future().share();
  const auto errors = on_threads({0, 1}, [&](int rank) {
    if (rank == 1) left.set_value(leave_network());
    if (apart.get()) World::from_store(store, rank, 2, options);
  });
  if (!apart.get()) {
    skip_case("no permission to make a network namespace");
    return;
  }
  for (const auto& error : errors) {
    CHECK(error == Saying{ErrorCode::kInvalidArgument, advice});
  }
}

TEST_CASE("rank 0 hosts the store, or shares the trainer's") {
  StoreLeakCheck leaks;
  const int port = free_port();
  c10::intrusive_ptr<c10d::TCPStore> trainers;
  SUBCASE("nobody hosts it yet") {}
  SUBCASE("the trainer hosts it for several") { trainers = hosted_store(port, /*multi_tenant=*/true); }
  SUBCASE("the trainer hosts it for itself") { trainers = hosted_store(port); }
  // The ranks are threads that share this process's environment, so each opens the store as it
  // would in its own process.
  std::vector<std::string> incarnations(2);
  all_succeed(2, [&](int rank) {
    const World world = World::from_store(open_store(place_of(rank, 2, port), std::chrono::seconds(20)), rank, 2);
    incarnations[static_cast<std::size_t>(rank)] = world.incarnation();
  });
  CHECK(incarnations[0] == incarnations[1]);
  CHECK(incarnations[0].size() == 32);
}

TEST_CASE("jobs whose names give the same port do not meet") {
  StoreLeakCheck leaks;
  const int port = free_port();
  std::vector<c10::intrusive_ptr<c10d::Store>> stores(4);  // one job's rank 0 hosts the store of both, until all have met
  std::vector<std::string> incarnations(4);
  all_succeed(4, [&](int process) {
    Place place = place_of(process % 2, 2, port);
    place.job = process < 2 ? "a" : "b";
    const auto at = static_cast<std::size_t>(process);
    stores[at] = open_store(place, std::chrono::seconds(60));
    incarnations[at] = World::from_store(stores[at], place.rank, 2).incarnation();
  });
  CHECK(incarnations[0] == incarnations[1]);
  CHECK(incarnations[2] == incarnations[3]);
  CHECK(incarnations[0] != incarnations[2]);
}

TEST_CASE("the local rank is that of the options, else the launcher's, else the rank") {
  StoreLeakCheck leaks;
  const Environment environment = launched_as(0, 1, free_port(), {{"LOCAL_RANK", "2"}});
  WorldOptions options;
  const World launched = World::from_environment(options);
  CHECK(launched.local_rank() == 2);
  options.local_rank = 3;
  CHECK(World::from_environment(options).local_rank() == 3);
  const auto store = shared_store();
  all_succeed(2, [&](int rank) {
    WorldOptions of_rank;
    if (rank == 0) of_rank.local_rank = 3;
    CHECK(World::from_store(store, rank, 2, of_rank).local_rank() == (rank == 0 ? 3 : 1));
  });
}

TEST_CASE("a world of one needs its store for nobody else") {
  StoreLeakCheck leaks;
  const Environment environment = launched_as(0, 1, free_port(), {{"LOCAL_RANK", std::nullopt}});
  const World world = World::from_environment();
  CHECK(world.size() == 1);
  CHECK(world.local_rank() == 0);
}

TEST_CASE("from addresses, everybody knows the world without asking") {
  StoreLeakCheck leaks;
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
  CHECK(thrown_by([&] { World::from_addresses(2, addresses, "job 2"); }).code == ErrorCode::kInvalidArgument);
  CHECK(thrown_by([&] { World::from_addresses(0, addresses, ""); }).says("job id"));
  CHECK(thrown_by([&] { World::from_addresses(0, {"nowhere"}, "job 3"); }).says("nowhere"));
  CHECK(thrown_by([&] { World::from_addresses(0, {}, "job 3"); }).code == ErrorCode::kInvalidArgument);
  // An unknown host name may become resolvable later.
  CHECK_FALSE(thrown_by([&] { World::from_addresses(0, {addresses[0], "no-such-host.invalid:1"}, "job 3"); }).is_error);
}

// Counts the reads and the keys of a store, over all ranks.
class CountingStore : public c10d::HashStore {
 public:
  std::vector<std::uint8_t> get(const std::string& key) override {
    ++gets;
    return c10d::HashStore::get(key);
  }
  bool check(const std::vector<std::string>& keys) override {
    const std::lock_guard lock(mutex_);
    asked_.insert(keys.begin(), keys.end());
    return c10d::HashStore::check(keys);
  }
  std::size_t keys_asked_for() const {
    const std::lock_guard lock(mutex_);
    return asked_.size();
  }
  std::atomic<int> gets{0};

 private:
  mutable std::mutex mutex_;
  std::set<std::string> asked_;
};

TEST_CASE("a rank that meets nobody asks the store for few keys, whatever the world's size") {
  const auto store = c10::make_intrusive<CountingStore>();
  const auto error = thrown_by([&] { assemble(store, 7, 10'000, "127.0.0.1:4000", milliseconds(20)); });
  CHECK(error == Saying{ErrorCode::kDeadline, "rank 0 did not come"});
  CHECK(store->keys_asked_for() <= 4);
}

TEST_CASE("ranks that assemble read each card once") {
  const auto store = c10::make_intrusive<CountingStore>();
  all_succeed(16, [&](int rank) {
    const auto assembly = assemble(store, rank, 16, "127.0.0.1:" + std::to_string(4000 + rank), std::chrono::seconds(60));
    CHECK(assembly.addresses[5] == "127.0.0.1:4005");
  });
  CHECK(store->gets == 16 + 15);  // 16 cards, and the verdict once for each of the other 15 ranks
}

TEST_CASE("while a world assembles, a warning says whom it waits for") {
  const CapturedLog log;
  SUBCASE("rank 0, for the others") {
    const auto error =
        thrown_by([&] { assemble(shared_store(), 0, 4, "127.0.0.1:4000", milliseconds(20), Secret(), Duration(0)); });
    CHECK(error.says("ranks 1-3 did not come"));
    CHECK(log.text().find("warning rank 0: waiting for ranks 1-3 to join the world of 4 ranks: 0 s of 0 s") == 0);
  }
  SUBCASE("without rank 0, the lowest that has come, for all") {
    const auto store = shared_store();
    for (const int rank : {2, 3})
      thrown_by([&] { assemble(store, rank, 4, "127.0.0.1:4000", milliseconds(20), Secret(), Duration(0)); });
    CHECK(log.text().find("warning rank 2: waiting for ranks 0, 1, 3 to join the world of 4 ranks: 0 s of 0 s") == 0);
    CHECK_FALSE(contains(log.text(), "warning rank 3"));
  }
  SUBCASE("in a large world without rank 0, the first that has come") {
    const auto store = shared_store();
    for (const int rank : {70, 3})
      thrown_by([&] { assemble(store, rank, 100, "127.0.0.1:4000", milliseconds(20), Secret(), Duration(0)); });
    CHECK(log.text().find("warning rank 70: waiting for ranks 0-69, 71-99 to join") == 0);
    CHECK_FALSE(contains(log.text(), "warning rank 3"));
  }
  SUBCASE("beside rank 0, no other rank") {
    const auto store = shared_store();
    for (const int rank : {0, 1})
      thrown_by([&] { assemble(store, rank, 4, "127.0.0.1:4000", milliseconds(20), Secret(), Duration(0)); });
    CHECK_FALSE(contains(log.text(), "warning rank 1: waiting"));
  }
  for (const int rank : {1, 2}) {
    const Place place = place_of(rank, 4, free_port());
    thrown_by([&] { open_store(place, milliseconds(500), Duration(0)); });
  }
  CHECK(contains(log.text(), "warning rank 1: waiting for rank 0 to offer the store at 127.0.0.1:"));
  CHECK(contains(log.text(), "warning rank 2: waiting for rank 0 to offer the store"));  // no rank knows of the others
}

TEST_CASE("a world raises the soft limit of descriptors to what it needs, and saves") {
  constexpr int kRanks = 24;
  const DescriptorLimit few(64);
  const TemporaryDirectory directory;
  const auto store = shared_store();
  WorldOptions options;
  options.actor_threads = 1;
  all_succeed(kRanks, [&](int rank) {
    const World world = World::from_store(store, rank, kRanks, options);
    Checkpointer(world).save({{"rank " + std::to_string(rank), rank}}, directory.path() + "/step_1");
  });
  rlimit now{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &now) == 0);
  CHECK(now.rlim_cur > 64);
  CHECK(now.rlim_cur <= 20'000);
}

bool forked = false;  // this process is a forked child of a test

// Runs `body` in a forked child. Returns whether the child succeeded.
bool in_child(const std::function<bool()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    forked = true;
    ::alarm(60);
    ::_exit(body() ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST_CASE("a world that needs more descriptors than the hard limit is refused by name") {
  std::vector<std::string> addresses(24, "127.0.0.1:9");
  for (std::size_t rank : {0, 1}) addresses[rank] = "127.0.0.1:" + std::to_string(free_port());
  for (const int rank : {0, 1})
    CHECK(in_child([&] {
      const rlimit limit{64, 64};
      if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
      const Thrown thrown = thrown_by([&] { World::from_addresses(rank, addresses, "job"); });
      return thrown == Saying{ErrorCode::kPrecondition, "ulimit -Hn is 64, of which"} && thrown.says("file descriptors");
    }));
}

TEST_CASE("the limit of descriptors is raised before rank 0 hosts the store") {
  const Place place = place_of(0, 40, free_port());
  for (const bool can_raise : {true, false})
    CHECK(in_child([&] {
      rlimit limit{};
      if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
      limit.rlim_cur = 64;
      if (!can_raise) limit.rlim_max = 64;
      if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
      const Thrown error = thrown_by([&] { open_store(place, std::chrono::seconds(30)); });
      if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
      if (can_raise) return !error.is_error && limit.rlim_cur > 4 * 40;
      return error.code == ErrorCode::kPrecondition && error.says("ulimit -Hn is 64, of which") &&
             error.says("one for each client of the store");
    }));
}

TEST_CASE("the hard limit of descriptors must suffice for all ranks of a process together") {
  for (const int ranks_here : {1, 60})
    CHECK(in_child([&] {
      const rlimit limit{300, 300};
      if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
      const Thrown error = thrown_by([&] { provide_descriptors(0, 60, ranks_here); });
      if (ranks_here == 1) return !error.is_error;
      return error.code == ErrorCode::kPrecondition && error.says("ulimit -Hn is 300") &&
             error.says("more for each one in this process");
    }));
}

TEST_CASE("a process without free descriptors gets an error, and lives on") {
  CHECK(in_child([] {
    const rlimit limit{3, 3};
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
    const Thrown error = thrown_by([] { World::single(); });
    return error.code == ErrorCode::kUnavailable && error.says("too many open files");
  }));
}

TEST_CASE("a forked child that releases a world ends at once") {
  static std::optional<World> kept;
  const auto worlds = World::in_process(2);
  std::vector<World> handles{World::single(), worlds[0]};
  handles.push_back(World::from_addresses(0, {"127.0.0.1:" + std::to_string(free_port()), "127.0.0.1:9"}, "job"));
  CHECK(in_child([&] {
    handles.clear();
    return true;
  }));
  kept = std::move(handles.back());
  handles.pop_back();
  CHECK(in_child([]() -> bool { std::exit(0); }));
  kept.reset();
}

TEST_CASE("a forked child cannot rejoin the survivors of a world, and hears so at once") {
  const auto worlds = World::in_process(2);
  const World over_network = World::from_addresses(0, {"127.0.0.1:" + std::to_string(free_port()), "127.0.0.1:9"}, "job");
  for (const World& world : {worlds[0], over_network})
    CHECK(in_child([&] {
      const Thrown error = thrown_by([&] { world.rejoin({0}); });
      return error.code == ErrorCode::kPrecondition && error.says("rank 0 cannot rejoin in a forked child process");
    }));
}

TEST_CASE("a place that is none, an address that is none") {
  StoreLeakCheck leaks;
  const auto store = shared_store();
  CHECK(thrown_by([&] { World::from_store(store, 2, 2); }).code == ErrorCode::kInvalidArgument);
  CHECK(thrown_by([&] { World::from_store(store, -1, 2); }).code == ErrorCode::kInvalidArgument);
  CHECK(thrown_by([&] { World::from_store(store, 0, 0); }).code == ErrorCode::kInvalidArgument);
  CHECK(thrown_by([&] { World::from_store({}, 0, 1); }).code == ErrorCode::kInvalidArgument);
  WorldOptions options;
  options.bind_address = "0.0.0.0";
  CHECK(thrown_by([&] { World::from_store(store, 0, 1, options); }).says("0.0.0.0"));
  options.bind_address = "203.0.113.1";  // no interface has this address
  CHECK(thrown_by([&] { World::from_store(store, 0, 1, options); }).says("203.0.113.1"));
}

TEST_CASE("shutting down may be asked for twice, by any copy") {
  StoreLeakCheck leaks;
  const World world = World::single();
  const World copy = world;
  CHECK(copy.shutdown(std::chrono::seconds(20)));
  CHECK(world.shutdown(std::chrono::seconds(20)));
}

TEST_CASE("waits for ever are long") {
  StoreLeakCheck leaks;
  constexpr auto kForEver = milliseconds::max();
  WorldOptions options;
  options.assemble_deadline = options.shutdown_deadline = kForEver;
  options.runtime.join_deadline = options.runtime.phase_deadline = options.runtime.outcome_grace = kForEver;
  options.runtime.phase_grace = options.runtime.cancel_grace = kForEver;
  options.runtime.connect_deadline = options.runtime.handshake_deadline = options.runtime.heartbeat_timeout = kForEver;
  const auto store = shared_store();
  all_succeed(2, [&](int rank) {
    const World world = World::from_store(store, rank, 2, options);
    Checkpointer checkpointer(world);
    SaveOptions save;
    save.storage_writer = std::make_shared<FaultyWriter>(FailOn{}, rank);
    checkpointer.save(common_state(rank, 2), "nowhere", save);
    CHECK(world.shutdown(kForEver));
  });
}

TEST_CASE("a checkpointer's name is taken once") {
  const World world = World::single();
  world.claim_checkpointer("main");
  CHECK(thrown_by([&] { world.claim_checkpointer("main"); }).code == ErrorCode::kAlreadyExists);
  CHECK(thrown_by([&] { world.claim_checkpointer(""); }).code == ErrorCode::kInvalidArgument);
  world.release_checkpointer("main");
  world.claim_checkpointer("main");
}

TEST_CASE("checkpointers whose names give the same save ids are refused") {
  REQUIRE(checkpointer_key("plumless") == checkpointer_key("buckeroo"));
  const World world = World::single();
  world.claim_checkpointer("plumless");
  world.release_checkpointer("plumless");
  const Thrown refused = thrown_by([&] { world.claim_checkpointer("buckeroo"); });
  CHECK(refused == Saying{ErrorCode::kAlreadyExists, "give the same save ids"});
  world.claim_checkpointer("plumless");
}

}  // namespace

// LeakSanitizer calls this as a process exits. A forked child lacks its parent's threads, so memory
// that only their stacks refer to would look leaked.
extern "C" int __lsan_is_turned_off();
extern "C" int __lsan_is_turned_off() { return forked ? 1 : 0; }

}  // namespace cairn::testing
