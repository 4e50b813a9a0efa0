// Worlds with a secret, without one, and with ranks whose secrets differ.
#include <cairn/tests/support/skipped.hpp>
#include <cairn/tests/support/torch.hpp>
//
#include <sys/stat.h>

#include <atomic>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <cairn/actors/links/socket.hpp>
#include <cairn/base/wait.hpp>
#include <cairn/runtime/cairn.hpp>
#include <cairn/runtime/launch/rendezvous.hpp>
#include <cairn/runtime/worlds/job_secret.hpp>
#include <cairn/tests/runtime/rank_threads.hpp>
#include <cairn/tests/support/captured_log.hpp>
#include <cairn/tests/support/descriptor_limit.hpp>
#include <cairn/tests/support/environment.hpp>
#include <cairn/tests/support/failure_maps.hpp>
#include <cairn/tests/support/leak_check.hpp>
#include <cairn/tests/support/temporary_directory.hpp>
#include <cairn/tests/support/thrown.hpp>

namespace cairn::testing {
namespace {

constexpr const char* kOurs = "the secret of these tests";
constexpr const char* kTheirs = "another secret, as long as it";

// Sets the environment's secret variables for one test.
Environment secret_variables(const std::optional<std::string>& file, const std::optional<std::string>& text) {
  return Environment({{"CAIRN_SECRET_FILE", file}, {"CAIRN_SECRET", text}});
}
Environment no_secret_variables() { return secret_variables(std::nullopt, std::nullopt); }

WorldOptions with_secret(const std::string& secret) {
  WorldOptions options;
  options.secret = secret;
  options.assemble_deadline = std::chrono::seconds(60);
  return options;
}

std::vector<std::string> free_addresses(int count) {
  std::vector<Socket> holders;
  std::vector<std::string> addresses;
  for (int i = 0; i < count; ++i) {
    holders.push_back(listen_on("127.0.0.1", 0));
    addresses.push_back(to_string(local_endpoint(holders.back())));
  }
  return addresses;
}

StateDict state_of(int rank) { return StateDict{{"tensor of rank " + std::to_string(rank), torch::full({100, 100}, rank)}}; }

std::string proof_of(const Secret& secret) { return secret.sign("test", "text"); }

TEST_CASE("the secret is looked for in one place after the other") {
  const TemporaryDirectory directory;
  const auto file = [&](const std::string& text) {
    const std::string path = directory.path() + "/" + text.substr(0, 4);
    std::ofstream(path) << text << "\n";
    ::chmod(path.c_str(), 0600);
    return path;
  };
  const std::string in_option_file = file("1 in the file of the options");
  const std::string in_named_file = file("2 in the file that is named");
  WorldOptions options;
  {
    const Environment nothing = no_secret_variables();
    CHECK(find_secret(options).empty());
  }
  const Environment variables = secret_variables(in_named_file, "3 in the environment itself");
  CHECK(proof_of(find_secret(options)) == proof_of(Secret(std::string_view("2 in the file that is named"))));
  {
    const Environment text_only = secret_variables("", "3 in the environment itself");
    CHECK(proof_of(find_secret(options)) == proof_of(Secret(std::string_view("3 in the environment itself"))));
  }
  options.secret_file = in_option_file;
  CHECK(proof_of(find_secret(options)) == proof_of(Secret(std::string_view("1 in the file of the options"))));
  options.secret = "0 in the options";
  CHECK(thrown_by([&] { find_secret(options); }).code == ErrorCode::kInvalidArgument);
  options.secret_file.clear();
  CHECK(proof_of(find_secret(options)) == proof_of(Secret(std::string_view("0 in the options"))));
}

TEST_CASE("the secret comes from the store only if nothing more specific gives one") {
  WorldOptions options;
  {
    const Environment nothing = no_secret_variables();
    CHECK_FALSE(is_secret_in_store(options));
  }
  {
    const Environment asked = secret_variables(std::nullopt, "store");
    CHECK(is_secret_in_store(options));
    CHECK(find_secret(options).empty());
    options.secret = "0 in the options";
    CHECK_FALSE(is_secret_in_store(options));
    options.secret.clear();
  }
  const Environment file = secret_variables("/a/file", "store");
  CHECK_FALSE(is_secret_in_store(options));
  options.secret_from_store = true;
  CHECK(is_secret_in_store(options));
  options.secret_file = "/another/file";
  CHECK_FALSE(is_secret_in_store(options));
}

TEST_CASE("ranks with a secret from the store save over TLS, in one world after another") {
  LeakCheck leaks;
  const Environment nothing = no_secret_variables();
  const TemporaryDirectory directory;
  const auto store = c10::make_intrusive<c10d::HashStore>();
  WorldOptions options;
  options.secret_from_store = true;
  options.assemble_deadline = std::chrono::seconds(60);
  for (const std::string name : {"/step_1", "/step_2"}) {
    all_succeed(3, [&](int rank) {
      const World world = World::from_store(store, rank, 3, options);
      CHECK(world.secured());
      Checkpointer checkpointer(world);
      checkpointer.save(state_of(rank), directory.path() + name);
    });
  }
}

TEST_CASE("a rank that finds no secret in the store says so, and addresses have no store") {
  LeakCheck leaks;
  const Environment asked = secret_variables(std::nullopt, "store");
  const auto store = c10::make_intrusive<c10d::HashStore>();
  WorldOptions options;
  options.assemble_deadline = std::chrono::milliseconds(100);
  CHECK(thrown_by([&] { World::from_store(store, 1, 2, options); }) == Saying{ErrorCode::kDeadline, "CAIRN_SECRET=store"});
  CHECK(World::from_store(store, 0, 1, options).size() == 1);
  CHECK(thrown_by([&] { World::from_addresses(0, free_addresses(2), "job", options); }).code == ErrorCode::kInvalidArgument);
}

TEST_CASE("two processes of one rank are named when the secret comes from the store") {
  LeakCheck leaks;
  const Environment nothing = no_secret_variables();
  const auto store = c10::make_intrusive<c10d::HashStore>();
  WorldOptions options;
  options.secret_from_store = true;
  options.assemble_deadline = std::chrono::milliseconds(100);
  // Rank 1 is here, and a second process of that rank waits for a secret of its own.
  const std::string card = "1 3 a-machine 127.0.0.1:4000 none";
  const auto number = store->add("cairn/1/arrivals", 1);
  store->set("cairn/1/arrival/" + std::to_string(number), std::vector<std::uint8_t>(card.begin(), card.end()));
  store->add("cairn/1/readers", 1);  // as that rank would after it has read the verdict
  store->add("cairn/joins/1", 1);
  store->add("cairn/secrets/1", 2);
  const Thrown of_rank_0 = thrown_by([&] { World::from_store(store, 0, 3, options); });
  CHECK(of_rank_0 == Saying{ErrorCode::kDeadline, "rank 2 did not come"});
  CHECK(of_rank_0.says("rank 1 came more than once: see whether two processes have the same RANK"));
  const Thrown of_another_process = thrown_by([&] { World::from_store(store, 1, 3, options); });
  CHECK(of_another_process == Saying{ErrorCode::kDeadline, "rank 1 got no secret from rank 0"});
  CHECK(of_another_process.says("rank 1 came more than once: see whether two processes have the same RANK"));
  const Thrown of_rank_2 = thrown_by([&] { World::from_store(c10::make_intrusive<c10d::HashStore>(), 2, 3, options); });
  CHECK(of_rank_2.says("rank 2 got no secret from rank 0"));
  CHECK_FALSE(of_rank_2.says("more than once"));
}

// A store that delivers the secret of rank 0 only when the world's deadline has passed.
class LateSecret : public c10d::HashStore {
 public:
  bool check(const std::vector<std::string>& keys) override {
    if (keys.front().find("cairn/secret/") == 0)
      for (const Deadline late = std::chrono::milliseconds(100); late.left().count() > 0;) std::this_thread::yield();
    if (keys.front().find("verdict") != std::string::npos) ++questions;
    return c10d::HashStore::check(keys);
  }
  std::atomic<int> questions{0};  // whether rank 0 has published the assembly
};

TEST_CASE("one deadline covers all waits in which a world assembles") {
  LeakCheck leaks;
  const Environment nothing = no_secret_variables();
  WorldOptions options;
  options.secret_from_store = true;
  options.assemble_deadline = std::chrono::milliseconds(50);
  const auto store = c10::make_intrusive<LateSecret>();
  const std::string drawn = "a secret that rank 0 has drawn";
  store->set("cairn/secret/1/drawn", std::vector<std::uint8_t>(drawn.begin(), drawn.end()));
  const Thrown thrown = thrown_by([&] { World::from_store(store, 1, 3, options); });
  CHECK(thrown.code == ErrorCode::kDeadline);
  CHECK_MESSAGE(thrown.says("did not assemble within 0.05 s: ranks 0, 2 did not come"), thrown.what);
  CHECK(store->questions == 1);  // and no second deadline
}

TEST_CASE("ranks that wait long for the secret from the store log it") {
  LeakCheck leaks;
  const CapturedLog log;
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto wait_as = [&](int rank) {
    CHECK(thrown_by([&] { share_secret(store, rank, 4, std::chrono::milliseconds(20), Duration(0)); }).is_error);
  };
  wait_as(2);
  CHECK(log.text().find("warning rank 2: waiting for rank 0 to join the exchange of the job's secret: 0 s of 0 s") == 0);
  wait_as(3);
  CHECK(log.text().find("warning rank 3") == std::string::npos);
  wait_as(2);  // as a second process of that rank
  CHECK(log.text().find("warning rank 2: waiting for rank 0") != std::string::npos);
}

TEST_CASE("a world refuses an invalid secret") {
  LeakCheck leaks;
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/secret";
  std::ofstream(path) << "everybody reads this secret";
  ::chmod(path.c_str(), 0644);
  WorldOptions options;
  options.secret_file = path;
  const auto store = c10::make_intrusive<c10d::HashStore>();
  CHECK(thrown_by([&] { World::from_store(store, 0, 2, options); }) == Saying{ErrorCode::kPermission, "chmod 600"});
  CHECK(thrown_by([&] { World::from_addresses(0, free_addresses(2), "job", options); }).code == ErrorCode::kPermission);
  CHECK(thrown_by([&] { World::from_store(store, 0, 2, with_secret("too short")); }).code == ErrorCode::kInvalidArgument);
}

TEST_CASE("without a secret nothing but loopback will do") {
  LeakCheck leaks;
  const Environment nothing = no_secret_variables();
  auto addresses = free_addresses(2);
  const auto refused = [&](const WorldOptions& options) {
    const Thrown thrown = thrown_by([&] { World::from_addresses(0, addresses, "job", options); });
    CHECK(thrown == Saying{ErrorCode::kPrecondition, "CAIRN_SECRET_FILE"});
    CHECK(thrown.says("cairn-launch"));
  };
  WorldOptions everywhere;
  everywhere.bind_address = "0.0.0.0";
  refused(everywhere);
  addresses[1] = "192.0.2.1:4000";
  refused({});
  {
    WorldOptions secured = with_secret(kOurs);
    secured.bind_address = "0.0.0.0";
    CHECK(World::from_addresses(0, addresses, "job", secured).secured());
  }
  CHECK_FALSE(World::from_addresses(0, free_addresses(2), "job").secured());
  // Worlds of one rank have no listener, so they count as secured.
  CHECK(World::single().secured());
  CHECK(World::from_addresses(0, free_addresses(1), "job", everywhere).secured());
}

TEST_CASE("ranks with one secret save over TLS") {
  LeakCheck leaks;
  const TemporaryDirectory directory;
  const auto store = c10::make_intrusive<c10d::HashStore>();
  all_succeed(3, [&](int rank) {
    const World world = World::from_store(store, rank, 3, with_secret(kOurs));
    CHECK(world.secured());
    Checkpointer checkpointer(world);
    checkpointer.save(state_of(rank), directory.path() + "/step_1");
    CHECK(world.dump_trace().find(kOurs) == std::string::npos);
  });
  CHECK(read_metadata(directory.path() + "/step_1").state_dict_metadata.size() == 3);
  for (const char* number : {"1", "2", "3"}) {
    const auto card = store->get(std::string("cairn/1/arrival/") + number);
    CHECK(std::string(card.begin(), card.end()).find(kOurs) == std::string::npos);
  }
}

TEST_CASE("ranks with another secret are named on every rank at assembly") {
  LeakCheck leaks;
  const Environment nothing = no_secret_variables();
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::string> secrets;
  std::string named;
  SUBCASE("one has another") {
    secrets = {kOurs, kOurs, kTheirs};
    named = "rank 2 came without the secret of rank 0";
  }
  SUBCASE("two have none") {
    secrets = {kOurs, "", ""};
    named = "ranks 1, 2 came without the secret of rank 0";
  }
  SUBCASE("one has one") {
    secrets = {"", kOurs, ""};
    named = "rank 1, unlike rank 0, came with a secret";
  }
  for (const auto& thrown : on_threads(first_ranks(3), [&](int rank) {
         World::from_store(store, rank, 3, with_secret(secrets[static_cast<std::size_t>(rank)]));
       })) {
    CHECK(thrown.code == ErrorCode::kPermission);
    CHECK_MESSAGE(thrown.says(named), thrown.what);
    CHECK(thrown.says("CAIRN_SECRET_FILE"));
    CHECK_FALSE(thrown.says(kOurs));
    CHECK_FALSE(thrown.says(kTheirs));
  }
}

TEST_CASE("a process without the secret cannot redirect ranks through the store") {
  LeakCheck leaks;
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const std::string addresses = "\n127.0.0.1:4000\n127.0.0.1:4001";
  std::string verdict;
  SUBCASE("unsigned") { verdict = "0\nnone\n" + std::string(32, 'a') + addresses; }
  SUBCASE("signed with another secret") {
    verdict = "0\n" + Secret(std::string_view(kTheirs)).sign("cairn rendezvous v1", "x") + "\n" + std::string(32, 'a') + addresses;
  }
  store->set("cairn/1/verdict", std::vector<std::uint8_t>(verdict.begin(), verdict.end()));
  CHECK(thrown_by([&] { World::from_store(store, 1, 2, with_secret(kOurs)); }) == Saying{ErrorCode::kPermission, "rank 1"});
}

// Saves on all ranks at once. Returns their failure maps by rank.
std::vector<FailureMap> failures_of_a_save(std::vector<World>& worlds, const std::string& place) {
  std::vector<FailureMap> failures(worlds.size());
  all_succeed(static_cast<int>(worlds.size()), [&](int rank) {
    Checkpointer checkpointer(worlds[static_cast<std::size_t>(rank)]);
    failures[static_cast<std::size_t>(rank)] = failures_of([&] { checkpointer.save(state_of(rank), place); });
  });
  return failures;
}

TEST_CASE("ranks with other addresses or another job id are told so by every rank's save") {
  LeakCheck leaks;
  const Environment nothing = no_secret_variables();
  const TemporaryDirectory directory;
  const auto addresses = free_addresses(3);
  auto addresses_of_2 = addresses;
  std::string job_of_2 = "job";
  std::string secret;
  ErrorCode code = ErrorCode::kMismatch;
  std::string cause = "was given other addresses or another job id";
  const auto rename = [](std::string& address) { address.replace(0, address.find(':'), "localhost"); };
  SUBCASE("another name of a host, without a secret") { rename(addresses_of_2[0]); }
  SUBCASE("another name of a host, with a secret") {
    rename(addresses_of_2[0]);
    secret = kOurs;
  }
  SUBCASE("addresses in another order, with a secret") {
    std::swap(addresses_of_2[0], addresses_of_2[1]);
    secret = kOurs;
  }
  SUBCASE("another job id, without a secret") { job_of_2 = "other"; }
  SUBCASE("another job id, with a secret") {  // the ranks cannot authenticate, so it may be the secret as well
    job_of_2 = "other";
    secret = kOurs;
    code = ErrorCode::kPermission;
    cause = "the same job id";
  }
  std::vector<World> worlds;  // none may end before all ranks have failed
  for (int rank = 0; rank < 3; ++rank)
    worlds.push_back(
        World::from_addresses(rank, rank == 2 ? addresses_of_2 : addresses, rank == 2 ? job_of_2 : "job", with_secret(secret)));
  const std::vector<FailureMap> failures = failures_of_a_save(worlds, directory.path() + "/step_1");
  for (int rank = 0; rank < 3; ++rank) {
    CAPTURE(rank);
    const auto& map = failures[static_cast<std::size_t>(rank)];
    const int other = rank == 2 ? 0 : 2;
    REQUIRE(map.count(other) == 1);
    const Failure& failure = map.at(other);
    CHECK(failure.kind == FailureKind::kLost);
    CHECK_MESSAGE(failure.code == code, failure.what);
    CHECK_MESSAGE(failure.what.find(cause) != std::string::npos, failure.what);
    CHECK((failure.what.find("secret") != std::string::npos) == (code == ErrorCode::kPermission));
  }
}

TEST_CASE("a save succeeds while a thousand strangers connect to each rank") {
  const DescriptorLimit limit(20'000);
  if (!limit.enough()) {
    skip_case("this process may not open 20,000 descriptors");
    return;
  }
  LeakCheck leaks;
  const TemporaryDirectory directory;
  const auto addresses = free_addresses(2);
  std::vector<std::optional<World>> worlds(2);
  for (int rank = 0; rank < 2; ++rank) {
    auto options = with_secret(kOurs);
    options.runtime.unauthenticated_connections_max = 2000;
    options.runtime.handshake_deadline = std::chrono::hours(1);
    worlds[static_cast<std::size_t>(rank)] = World::from_addresses(rank, addresses, "job", options);
  }
  std::vector<Socket> strangers;
  for (const auto& address : addresses) {
    for (int i = 0; i < 1000; ++i) {
      Socket stranger;
      REQUIRE(start_connect(resolve_endpoint(address), stranger).state != ConnectState::kFailed);
      strangers.push_back(std::move(stranger));
    }
  }
  for (int step = 0; step < 2; ++step) {
    const std::string name = directory.path() + "/step_" + std::to_string(step);
    for (const auto& thrown : on_threads(first_ranks(2), [&](int rank) {
           Checkpointer checkpointer(*worlds[static_cast<std::size_t>(rank)]);
           checkpointer.save(state_of(rank), name);
         }))
      CHECK_MESSAGE(!thrown.is_error, thrown.what);
    CHECK(read_metadata(name).state_dict_metadata.size() == 2);
  }
}

}  // namespace
}  // namespace cairn::testing
