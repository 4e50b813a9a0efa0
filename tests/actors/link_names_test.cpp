// Ranks with host names as addresses. A name is resolved when a connection is opened, and again
// until the connect deadline.
#include <cairn/tests/support/torch.hpp>
//
#include <atomic>

#include <cairn/actors/links/plain_transform.hpp>
#include <cairn/base/error.hpp>
#include <cairn/tests/actors/links_world.hpp>

namespace cairn::testing {
namespace {

// Rank 0 of a world of two. It knows rank 1 as "rank-1.test".
struct NamedWorld {
  explicit NamedWorld(NameLookup look_up, const TransformFactory& transform = plain_transform()) : kind(2, transform) {
    TcpLinksConfig config;
    config.listener = listen_on("127.0.0.1", 0);
    config.addresses = {to_string(local_endpoint(config.listener)),
                        "rank-1.test:" + std::to_string(split_address(kind.address(1)).port)};
    config.incarnation = kIncarnation;
    config.look_up = std::move(look_up);
    if (transform) config.transform = transform;
    factory = make_tcp_links(std::move(config));
  }
  LeakCheck leaks;
  LinkSystem system;
  TcpKind kind;
  std::shared_ptr<LinksFactory> factory;
};

TEST_CASE("host names are looked up on connecting, and again until they resolve") {
  std::atomic<int> asked{0};
  std::string real;
  NamedWorld world([&](const std::string& address) {
    CHECK(address.find("rank-1.test:") == 0);
    if (++asked < 3) throw Error(ErrorCode::kUnavailable, "nobody knows the name yet");
    return resolve_endpoint(real);
  });
  real = world.kind.address(1);
  LinkRank zero(*world.system, *world.factory, 0, usual_options());
  LinkRank one(*world.system, world.kind.of(1), 1, usual_options());
  CHECK(asked == 0);
  zero.send(1, "here I am");
  REQUIRE(one.log().wait_messages(0, 1));
  CHECK(asked >= 3);  // the heartbeat connection resolves the name as well
}

TEST_CASE("a host name that never resolves is the reason why its rank is lost") {
  std::atomic<int> asked{0};
  NamedWorld world([&](const std::string&) -> Endpoint {
    ++asked;
    throw Error(ErrorCode::kUnavailable, "nobody knows the name");
  });
  auto options = usual_options();
  options.connect_deadline = std::chrono::seconds(1);
  LinkRank zero(*world.system, *world.factory, 0, options);
  zero.send(1, "where are you");
  const auto down = zero.log().wait_down(1);
  CHECK(down.cause == LinkDownCause::kUnreachable);
  // The last lookup failed or was in progress at the deadline.
  const bool names_it = down.why.find("nobody knows the name") != std::string::npos;
  CHECK_MESSAGE((names_it || down.why.find("its host name was not resolved in time") != std::string::npos), down.why);
  CHECK(asked >= 2);
}

TEST_CASE("without a secret a name that resolves beyond loopback is refused") {
  NamedWorld world([](const std::string&) { return resolve_endpoint("192.0.2.1:80"); }, nullptr);
  LinkRank zero(*world.system, *world.factory, 0, usual_options());
  zero.send(1, "in the clear");
  const auto down = zero.log().wait_down(1);
  CHECK(down.cause == LinkDownCause::kForbidden);
  CHECK(down.why.find("secret") != std::string::npos);
}

}  // namespace
}  // namespace cairn::testing
