// The address at which a rank listens: from options, variables, network interfaces and routes.
#include <cairn/tests/support/skipped.hpp>
#include <cairn/tests/support/torch.hpp>
//
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cairn/actors/links/socket.hpp>
#include <cairn/base/error.hpp>
#include <cairn/runtime/launch/own_address.hpp>
#include <cairn/runtime/launch/tcp_store.hpp>
#include <cairn/runtime/worlds/world.hpp>
#include <cairn/tests/runtime/rank_threads.hpp>
#include <cairn/tests/support/environment.hpp>
#include <cairn/tests/support/thrown.hpp>

namespace cairn::testing {
namespace {

const std::vector<InterfaceAddress> kInterfaces = {{"lo", "127.0.0.1", true},
                                                   {"eth0", "10.0.0.2", false},
                                                   {"eth01", "10.0.1.2", false},
                                                   {"ib0", "10.0.2.2", false},
                                                   {"docker0", "172.17.0.1", false}};

// Ranks with a secret, on several machines. Nothing is asked of the network.
AddressRequest far_request() {
  AddressRequest request{"", "node1", true};
  request.look_up = [](const std::string&) -> Endpoint {
    throw Error(ErrorCode::kInternal, "planned: no route was to be asked for");
  };
  request.interfaces = [] { return kInterfaces; };
  return request;
}

std::string chosen_with(const Variables& variables, const AddressRequest& request = far_request()) {
  return own_address(request, variables).host;
}

TEST_CASE("own address: options come before variables, and these before the route") {
  const Variables all = {{"CAIRN_BIND_ADDRESS", "10.0.9.9"},
                         {"CAIRN_SOCKET_IFNAME", "ib0"},
                         {"GLOO_SOCKET_IFNAME", "eth01"},
                         {"NCCL_SOCKET_IFNAME", "eth0"}};
  AddressRequest asking = far_request();
  asking.asked = "node2-data";
  CHECK(chosen_with(all, asking) == "node2-data");
  CHECK(chosen_with(all) == "10.0.9.9");
  Variables fewer = all;
  fewer["CAIRN_BIND_ADDRESS"] = "";
  CHECK(chosen_with(fewer) == "10.0.2.2");
  fewer.erase("CAIRN_SOCKET_IFNAME");
  CHECK(chosen_with(fewer) == "10.0.1.2");
  fewer.erase("GLOO_SOCKET_IFNAME");
  CHECK(chosen_with(fewer) == "10.0.0.2");
  CHECK(thrown_by([] { chosen_with({}); }).says("planned"));
}

TEST_CASE("own address: loopback is the default without a secret or with a local rank 0") {
  AddressRequest unsecured = far_request();
  unsecured.beyond_loopback = false;
  AddressRequest nobody = far_request();
  nobody.peer = "";
  std::vector<AddressRequest> near_requests{unsecured, nobody};
  for (const char* host : {"localhost", "127.0.0.1", "127.0.1.1", "::1"}) {
    near_requests.push_back(far_request());
    near_requests.back().peer = host;
  }
  for (const AddressRequest& request : near_requests) {
    CAPTURE(request.peer);
    CHECK(chosen_with({}, request) == "127.0.0.1");
    CHECK(chosen_with({{"NCCL_SOCKET_IFNAME", "eth0"}, {"GLOO_SOCKET_IFNAME", "eth0"}}, request) == "127.0.0.1");
    CHECK(chosen_with({{"CAIRN_SOCKET_IFNAME", "eth0"}}, request) == "10.0.0.2");
    CHECK(chosen_with({{"CAIRN_BIND_ADDRESS", "10.0.0.2"}}, request) == "10.0.0.2");
  }
}

TEST_CASE("own address: interfaces are named as for NCCL and Gloo") {
  const auto by_cairn = [](const std::string& value) { return chosen_with({{"CAIRN_SOCKET_IFNAME", value}}); };
  CHECK(by_cairn("eth") == "10.0.0.2");
  CHECK(by_cairn("eth01") == "10.0.1.2");
  CHECK(by_cairn("=eth0") == "10.0.0.2");
  CHECK(by_cairn("ens,ib,eth") == "10.0.2.2");
  CHECK(by_cairn("^eth,docker") == "10.0.2.2");
  CHECK(by_cairn("^=eth0,docker0") == "10.0.1.2");
  CHECK(by_cairn("lo") == "127.0.0.1");
  CHECK(by_cairn("^eth,ib,docker") == "127.0.0.1");
  CHECK(chosen_with({{"NCCL_SOCKET_IFNAME", "ib"}}) == "10.0.2.2");
  CHECK(chosen_with({{"GLOO_SOCKET_IFNAME", "ens3,ib0"}}) == "10.0.2.2");
}

TEST_CASE("own address: a wrong interface is an error that names those of this machine") {
  const Variables wrong = {{"CAIRN_SOCKET_IFNAME", "ens"}, {"GLOO_SOCKET_IFNAME", "eth"}, {"NCCL_SOCKET_IFNAME", "=ib"}};
  for (const auto& [variable, value] : wrong) {
    const auto& shown = variable;
    CAPTURE(shown);
    const Thrown thrown = thrown_by([&, name = variable, text = value] { chosen_with({{name, text}}); });
    CHECK(thrown == Saying{ErrorCode::kInvalidArgument, variable});
    CHECK(thrown.says("\"" + value + "\""));
    CHECK(thrown.says("eth0 (10.0.0.2)"));
    CHECK(thrown.says("docker0 (172.17.0.1)"));
  }
}

std::vector<InterfaceAddress> no_list() { throw Error(ErrorCode::kUnavailable, "planned: the interfaces are not listed"); }

TEST_CASE("own address: interfaces are listed only if a variable names one") {
  AddressRequest request = far_request();
  request.interfaces = no_list;
  CHECK(chosen_with({{"CAIRN_BIND_ADDRESS", "10.0.9.9"}, {"CAIRN_SOCKET_IFNAME", "eth0"}}, request) == "10.0.9.9");
  for (const char* variable : {"CAIRN_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"})
    CHECK(thrown_by([&] { chosen_with({{variable, "eth0"}}, request); }).says("the interfaces are not listed"));
  request.peer = "";
  CHECK(chosen_with({}, request) == "127.0.0.1");
}

TEST_CASE("own address: a wildcard is refused, wherever it comes from") {
  AddressRequest asking = far_request();
  for (const std::string wildcard : {"0.0.0.0", "0", "0x0", "::", "::0", "0:0::0", "::ffff:0.0.0.0", "::ffff:0:0"}) {
    CAPTURE(wildcard);
    asking.asked = wildcard;
    CHECK(thrown_by([&] { chosen_with({}, asking); }).says("bind_address " + wildcard + " names no address"));
    CHECK(thrown_by([&] {
            chosen_with({{"CAIRN_BIND_ADDRESS", wildcard}});
          }) == Saying{ErrorCode::kInvalidArgument, "CAIRN_BIND_ADDRESS " + wildcard + " names no address"});
  }
  for (const char* address : {"10.0.0.0", "::ffff:10.0.0.2", "fe80::", "zero", "0.example"}) {
    CAPTURE(address);
    CHECK(chosen_with({{"CAIRN_BIND_ADDRESS", address}}) == address);
  }
}

TEST_CASE("own address: rank 0's host name is looked up until the deadline") {
  AddressRequest late = far_request();
  late.deadline = std::chrono::minutes(5);
  int lookups = 0;
  late.look_up = [&](const std::string& address) {
    CHECK(address.find("node1:") == 0);
    if (++lookups < 3) throw Error(ErrorCode::kUnavailable, "planned: nobody knows the name yet");
    return resolve_endpoint("127.0.1.1:9");  // as Debian names its own machine
  };
  const std::string host = chosen_with({}, late);
  CHECK(lookups == 3);
  // This machine may have a default route, or none.
  const bool known = std::any_of(kInterfaces.begin(), kInterfaces.end(), [&](const auto& one) { return one.address == host; });
  const auto real = interface_addresses();
  const bool routed = std::any_of(real.begin(), real.end(), [&](const auto& one) { return one.address == host && !one.loopback; });
  CHECK_MESSAGE((known || routed), host);
  CHECK(host != "127.0.1.1");

  AddressRequest never = far_request();
  never.look_up = [](const std::string&) -> Endpoint { throw Error(ErrorCode::kUnavailable, "planned: nobody knows the name"); };
  CHECK(thrown_by([&] { chosen_with({}, never); }).code == ErrorCode::kUnavailable);
}

// Gives this thread a network namespace whose loopback interface has one more address, as a machine
// has on its network. Returns false without the permission.
bool enter_network_with(const char* address) {
  if (::unshare(CLONE_NEWNET) != 0) return false;
  const Socket control(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::strcpy(request.ifr_name, "lo");
  request.ifr_flags = IFF_UP;
  if (::ioctl(control.get(), SIOCSIFFLAGS, &request) != 0) return false;
  const Endpoint endpoint = resolve_endpoint(join_address(address, 1));
  request = {};
  std::strcpy(request.ifr_name, "lo:1");
  std::memcpy(&request.ifr_addr, &endpoint.storage, endpoint.length);
  return ::ioctl(control.get(), SIOCSIFADDR, &request) == 0;
}

TEST_CASE("own address: ranks with a secret listen on the route to rank 0's host") {
  bool entered = false;
  std::string routed, unlisted, listed;
  std::thread rank([&] {
    entered = enter_network_with("198.51.100.7");
    if (!entered) return;
    AddressRequest request;
    request.peer = "198.51.100.7";
    request.beyond_loopback = true;
    routed = own_address(request, {}).host;
    request.interfaces = no_list;
    request.look_up = [](const std::string&) { return resolve_endpoint("127.0.1.1:9"); };
    unlisted = own_address(request, {}).host;  // this network has no default route
    for (const auto& one : interface_addresses()) listed += one.interface + " " + one.address + "\n";
  });
  rank.join();
  if (!entered) {
    skip_case("no permission to make a network namespace");
    return;
  }
  CHECK(routed == "198.51.100.7");
  CHECK(unlisted == "127.0.0.1");
  CHECK(listed.find(" 198.51.100.7\n") != std::string::npos);
  CHECK(listed.find("lo 127.0.0.1\n") != std::string::npos);
}

TEST_CASE("own address: a world takes it from the variables, and errors name them") {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  WorldOptions options;
  options.assemble_deadline = std::chrono::milliseconds(100);
  options.secret = "a secret of these two ranks";
  const auto error_with = [&](const char* variable, const char* value) {
    std::map<std::string, std::optional<std::string>> variables{{"CAIRN_BIND_ADDRESS", std::nullopt},
                                                                {"CAIRN_SOCKET_IFNAME", std::nullopt}};
    variables[variable] = value;
    const Environment environment(variables);
    return thrown_by([&] { World::from_store(store, 1, 2, options); });
  };
  const Thrown nobodys = error_with("CAIRN_BIND_ADDRESS", "203.0.113.1");  // no interface has this address
  CHECK(nobodys.says("203.0.113.1"));
  CHECK(nobodys.says("chosen by CAIRN_BIND_ADDRESS"));
  CHECK(error_with("CAIRN_SOCKET_IFNAME", "nosuch").says("CAIRN_SOCKET_IFNAME is \"nosuch\""));
  // With an address of this machine, only rank 0 is missing.
  CHECK(error_with("CAIRN_BIND_ADDRESS", "127.0.0.1").code == ErrorCode::kDeadline);
}

TEST_CASE("own address: a rank with a wrong setting does not wait for rank 0 first") {
  std::map<std::string, std::optional<std::string>> variables{{"RANK", "1"},
                                                              {"WORLD_SIZE", "2"},
                                                              {"MASTER_ADDR", "127.0.0.1"},
                                                              {"MASTER_PORT", "1"},  // nobody listens there
                                                              {"CAIRN_BIND_ADDRESS", std::nullopt}};
  std::string said;
  SUBCASE("an interface") {
    variables["CAIRN_SOCKET_IFNAME"] = "nosuch";
    said = "CAIRN_SOCKET_IFNAME is \"nosuch\"";
  }
  SUBCASE("a range of ports") {
    variables["CAIRN_PORT_RANGE"] = "20100-20000";
    said = "CAIRN_PORT_RANGE is \"20100-20000\", which is no range of ports, such as 20000-20100";
  }
  const Environment environment(variables);
  WorldOptions options;
  options.assemble_deadline = std::chrono::milliseconds(100);
  CHECK(thrown_by([&] { World::from_environment(options); }) == Saying{ErrorCode::kInvalidArgument, said});
}

TEST_CASE("own address: ranks listen within the range of ports that is given, over successive worlds") {
  constexpr int kRanks = 3;
  WorldOptions options;
  std::vector<Socket> others;
  int first = 0;
  // Finds as many ports in a row as there are ranks; other programs may use some.
  for (int port = 21000; others.size() < kRanks && port < 32000; ++port) {
    try {
      others.push_back(reserve_port_in("127.0.0.1", {port, port}));
      first = others.size() == 1 ? port : first;
    } catch (const Error&) {
      others.clear();
    }
  }
  REQUIRE(others.size() == kRanks);
  const int last = first + kRanks - 1;
  options.port_range = std::to_string(first) + "-" + std::to_string(last);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  options.assemble_deadline = std::chrono::milliseconds(100);
  CHECK(thrown_by([&] { World::from_store(store, 0, kRanks, options); }) ==
        Saying{ErrorCode::kUnavailable, "all ports from " + std::to_string(first) + " to " + std::to_string(last) +
                                            " of 127.0.0.1 are in use: each rank of a machine needs one"});
  others.clear();
  options.assemble_deadline = std::chrono::minutes(1);
  const auto next = c10::make_intrusive<c10d::PrefixStore>("next", store);
  const auto has_taken_all = [&] {
    return thrown_by([&] { reserve_port_in("127.0.0.1", {first, last}); }).code == ErrorCode::kUnavailable;
  };
  std::vector<std::optional<World>> worlds(kRanks);
  all_succeed(kRanks, [&](int rank) { worlds[static_cast<std::size_t>(rank)] = World::from_store(next, rank, kRanks, options); });
  CHECK(has_taken_all());
  all_succeed(kRanks, [&](int rank) {
    auto& world = worlds[static_cast<std::size_t>(rank)];
    world = world->rejoin({0, 1, 2});
  });
  CHECK(has_taken_all());
}

TEST_CASE("own address: a TCPStore tells the host that all ranks reach") {
  c10d::TCPStoreOptions options;
  options.isServer = true;
  options.waitWorkers = false;
  options.port = 0;
  const auto served = open_tcp_store("localhost", options);
  CHECK(host_of_store(*served) == "localhost");
  c10d::PrefixStore inner("a", served);
  CHECK(host_of_store(inner) == "localhost");
  c10d::PrefixStore outer("b", c10::make_intrusive<c10d::PrefixStore>("a", served));
  CHECK(host_of_store(outer) == "localhost");
  CHECK(host_of_store(*c10::make_intrusive<c10d::HashStore>()) == "");
}

}  // namespace
}  // namespace cairn::testing
