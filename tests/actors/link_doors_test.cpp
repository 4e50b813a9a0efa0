// Protection of the ranks' listeners: the job's secret, the limits on unauthenticated connections,
// and the process's descriptor limit.
#include <cairn/tests/support/skipped.hpp>
#include <cairn/tests/support/torch.hpp>
//
#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <type_traits>

#include <cairn/actors/links/plain_transform.hpp>
#include <cairn/tests/actors/stranger.hpp>
#include <cairn/tests/support/descriptor_limit.hpp>
#include <cairn/tests/support/thrown.hpp>

namespace cairn::testing {
namespace {

constexpr std::string_view kOtherSecret = "not the secret of these tests";

// Takes every file descriptor that the process may still open.
class Exhaustion {
 public:
  Exhaustion() {
    for (;;) {
      Socket next(::open("/dev/null", O_RDONLY | O_CLOEXEC));
      if (!next.valid()) break;
      taken_.push_back(std::move(next));
    }
    REQUIRE(errno == EMFILE);
  }
  // Returns one descriptor to the process.
  void spare_one() { taken_.pop_back(); }
  void end() { taken_.clear(); }

 private:
  std::vector<Socket> taken_;
};

TEST_CASE("a rank with another secret is refused, and both sides say what to do") {
  LeakCheck leaks;
  LinkSystem system;
  TransformFactory theirs;
  bool claims = true;  // says in plaintext which rank it is
  SUBCASE("another secret") { theirs = tls_of(2, kOtherSecret); }
  SUBCASE("the secret of this job, in another life of it") { theirs = tls_of(2, kSecret, std::string(32, 'f')); }
  SUBCASE("no secret at all") {
    theirs = plain_transform();
    claims = false;
  }
  TcpKind kind({tls_of(0), tls_of(1), theirs});
  LinkRank zero(*system, kind.of(0), 0, usual_options());
  LinkRank one(*system, kind.of(1), 1, usual_options());
  LinkRank two(*system, kind.of(2), 2, usual_options());
  two.send(0, "let me in");
  const auto refused = two.log().wait_down(0);
  CHECK(refused.cause == LinkDownCause::kForbidden);
  CHECK(refused.why.find("rank 0 at " + kind.address(0)) != std::string::npos);
  CHECK(refused.why.find("give all ranks the same") != std::string::npos);
  CHECK(eventually([&] { return kind.counters(0).wrong_secret + kind.counters(0).garbage >= 1; }));
  CHECK(zero.log().wait([](const auto& events) {
    return std::any_of(events.begin(), events.end(), [](const LinkEvent& event) { return event.kind == LinkEvent::kRefused; });
  }));
  // A rank that waits for that peer is told as well: at once if the peer said which rank it is,
  // otherwise at the next send to it.
  if (!claims) zero.send(2, "where are you");
  const auto missed = zero.log().wait_down(2);
  CHECK(missed.cause == LinkDownCause::kForbidden);
  CHECK(missed.why.find("rank 2 at " + kind.address(2)) != std::string::npos);
  for (const auto* log : {&zero.log(), &two.log()}) {
    for (const auto& event : log->events()) {
      CHECK(event.why.find(kSecret) == std::string::npos);
      CHECK(event.why.find(kOtherSecret) == std::string::npos);
      CHECK(event.kind != LinkEvent::kUp);
    }
  }
  zero.send(1, "we go on");
  REQUIRE(one.log().wait_messages(0, 1));
}

TEST_CASE("a stranger that claims the number of a future rank changes nothing") {
  LeakCheck leaks;
  LinkSystem system;
  TlsKind kind(3);
  LinkRank zero(*system, kind.of(0), 0, usual_options());
  for (int claimed : {2, 2, 0, 7, -1}) {
    Stranger stranger(kind.address(0), tls_of(claimed, kOtherSecret));
    CHECK(stranger.is_closed_on());
    CHECK(stranger.fault());
  }
  CHECK(eventually([&] { return kind.counters(0).wrong_secret == 5; }));
  // Rank 2 was not there when rank 0 tried to reach it. It arrives now.
  LinkRank two(*system, kind.of(2), 2, usual_options());
  two.send(0, "here I am");
  REQUIRE(zero.log().wait_messages(2, 1));
  zero.send(2, "welcome");
  REQUIRE(two.log().wait_messages(0, 1));
  CHECK(zero.log().count(LinkEvent::kDown, 2) == 0);
}

TEST_CASE_TEMPLATE("a peer that sends a byte at a time gets no longer deadline than others", Kind, TcpKind, TlsKind) {
  auto options = usual_options();
  options.handshake_deadline = std::chrono::milliseconds(300);
  Door<Kind> door(options);
  const std::string hello = encode_frame(Stranger::hello(2, 3));
  Stranger slow(door.address());
  for (std::size_t i = 0; i + 1 < hello.size() && door.counters().handshake_deadline == 0; ++i) {
    REQUIRE(slow.say_raw(std::string(1, hello[i])));
    if (door.counters().garbage > 0) break;  // over TLS, not even the beginning of a handshake
  }
  CHECK(slow.is_closed_on());
  // This connection starts well and then sends nothing more.
  Stranger half = door.knock();
  if (std::is_same_v<Kind, TlsKind>) {
    CHECK(half.is_closed_on());
  } else {
    REQUIRE(half.say_raw(hello.substr(0, 6)));
    CHECK(half.is_closed_on());
  }
  CHECK(eventually([&] { return door.counters().handshake_deadline + door.counters().garbage == 2; }));
  door.check_members();
}

TEST_CASE_TEMPLATE("above the limit of strangers the oldest connection is closed", Kind, TcpKind, TlsKind) {
  auto options = usual_options();
  options.unauthenticated_connections_max = 10;
  options.handshake_deadline = std::chrono::hours(1);
  Door<Kind> door(options);
  door.check_members();
  std::vector<std::unique_ptr<Stranger>> idle;
  for (int i = 0; i < 60; ++i) idle.push_back(std::make_unique<Stranger>(door.address()));
  for (std::size_t i = 0; i < 50; ++i) CHECK(idle[i]->is_closed_on());
  CHECK(door.counters().crowded_out == 50);
  CHECK(door.counters().handshake_deadline == 0);
  CHECK(door.zero.log().wait([](const auto& events) {
    return std::any_of(events.begin(), events.end(), [](const LinkEvent& event) { return event.kind == LinkEvent::kRefused; });
  }));
  // A correct handshake still succeeds.
  Stranger rank = door.knock();
  rank.link(2, 3);
  door.check_members();
}

TEST_CASE_TEMPLATE("all ranks of a world may connect to one rank at once", Kind, TcpKind, TlsKind) {
  auto options = usual_options();
  options.unauthenticated_connections_max = 2;
  options.handshake_deadline = std::chrono::hours(1);
  LinkWorld<Kind> world(20);
  LinkRank zero = world.come(0, options);
  const LinkCounters& counters = world.kind.counters(0);
  std::vector<std::unique_ptr<Stranger>> idle;
  for (int i = 0; i < 20; ++i) idle.push_back(std::make_unique<Stranger>(world.kind.address(0)));
  CHECK(eventually([&] { return counters.connections == 20; }));
  CHECK(counters.crowded_out == 0);
  const Stranger one_more(world.kind.address(0));
  CHECK(idle.front()->is_closed_on());
  CHECK(counters.crowded_out == 1);
}

// Counts of the reads of one rank's connections, made on the network thread.
struct Reads {
  std::atomic<int> unread{0};             // connections that were accepted and not yet read
  std::atomic<int> unread_max{0};         // its maximum so far
  std::atomic<std::size_t> bytes_max{0};  // the most bytes that one read returned
};

class CountingTransform : public Transform {
 public:
  CountingTransform(std::unique_ptr<Transform> inner, std::shared_ptr<Reads> reads)
      : inner_(std::move(inner)), reads_(std::move(reads)) {
    reads_->unread_max = std::max(reads_->unread_max.load(), ++reads_->unread);
  }
  void start(Wire& wire) override { inner_->start(wire); }
  bool ready() const override { return inner_->ready(); }
  void receive(ByteSpan bytes, std::string& frames, Wire& wire) override {
    if (!std::exchange(was_read_, true)) --reads_->unread;
    reads_->bytes_max = std::max(reads_->bytes_max.load(), bytes.size());
    inner_->receive(bytes, frames, wire);
  }
  void send(ByteSpan frame, Wire& wire) override { inner_->send(frame, wire); }
  int claimed_rank() const override { return inner_->claimed_rank(); }

 private:
  const std::unique_ptr<Transform> inner_;
  const std::shared_ptr<Reads> reads_;
  bool was_read_ = false;
};

// Rank 0 of a world of three, which counts its reads. The test plays rank 2.
template <class Kind>
struct CountingRank {
  TransformFactory counting() {
    return [inner = transform, counts = reads](ConnectionSide side) {
      return std::make_unique<CountingTransform>(inner(side), counts);
    };
  }
  LeakCheck leaks;
  LinkSystem system;
  const TransformFactory transform = Kind(1).transform();
  const std::shared_ptr<Reads> reads = std::make_shared<Reads>();
  TcpKind kind{{counting(), transform, transform}};
};

TEST_CASE_TEMPLATE("few of a thousand queued connections are accepted before they are read", Kind, TcpKind, TlsKind) {
  const DescriptorLimit limit(10'000);
  if (!limit.enough()) {
    skip_case("this process may not open 10,000 descriptors");
    return;
  }
  CountingRank<Kind> rank;
  auto options = usual_options();
  options.unauthenticated_connections_max = 2000;
  options.handshake_deadline = std::chrono::hours(1);
  // All first bytes are sent before rank 0 accepts a connection.
  std::vector<std::unique_ptr<Stranger>> queued;
  for (int i = 0; i < 1000; ++i) {
    queued.push_back(std::make_unique<Stranger>(rank.kind.address(0), rank.transform));
    if constexpr (std::is_same_v<Kind, TcpKind>) REQUIRE(queued.back()->say(Stranger::hello(3, 3)));
  }
  LinkRank zero(*rank.system, rank.kind.of(0), 0, options);
  for (auto& stranger : queued) {
    if constexpr (std::is_same_v<Kind, TlsKind>) REQUIRE(stranger->say(Stranger::hello(3, 3)));
    const auto answer = stranger->hear();
    REQUIRE(answer);
    CHECK(answer->has_refusal());
  }
  CHECK(rank.kind.counters(0).connections == 1000);
  CHECK(rank.reads->unread_max.load() <= 8);
}

TEST_CASE_TEMPLATE("only a link's data connection has a large read buffer", Kind, TcpKind, TlsKind) {
  CountingRank<Kind> rank;
  LinkRank zero(*rank.system, rank.kind.of(0), 0, usual_options());
  const std::string large(60'000, 'x');
  // A frame, still incomplete, of a connection that has not said hello.
  Stranger stranger(rank.kind.address(0), rank.transform);
  REQUIRE(stranger.say(std::string("\0\0\xff\0", 4) + large));
  Stranger data(rank.kind.address(0), rank.transform);
  data.link(2, 3);
  Stranger beats(rank.kind.address(0), rank.transform);
  beats.link(2, 3, v1::LINK_PURPOSE_HEARTBEAT);
  // The heartbeat connection accepts only heartbeats, so it ends the link.
  REQUIRE(beats.say(std::string("\0\0\xff\0", 4) + std::string(0xff00, 'x')));
  CHECK(zero.log().wait_down(2).cause == LinkDownCause::kProtocol);
  CHECK(rank.reads->bytes_max.load() <= 4096);
  Stranger again(rank.kind.address(0), rank.transform);
  again.link(2, 3);
  v1::LinkFrame frame;
  frame.mutable_section()->set_message(1);
  frame.mutable_section()->set_total(4u << 20);
  frame.mutable_section()->set_bytes(std::string(3u << 20, 'x'));
  REQUIRE(again.say(frame));
  CHECK(eventually([&] { return rank.reads->bytes_max > 4096; }));
}

TEST_CASE_TEMPLATE("without free descriptors links go on, and accepting resumes later", Kind, TcpKind, TlsKind) {
  auto options = usual_options();
  options.heartbeat_timeout = std::chrono::seconds(2);  // for short ticks
  Door<Kind> door(options);
  door.check_members();
  {
    Exhaustion exhaustion;
    exhaustion.spare_one();
    Stranger waiting(door.address());  // takes the last descriptor; the kernel queues the connection until it is accepted
    CHECK(eventually([&] { return door.counters().door_shut >= 1; }));
    const auto before = door.counters().connections.load();
    door.check_members();
    CHECK(door.counters().connections == before);
    exhaustion.end();
    CHECK(eventually([&] { return door.counters().connections == before + 1; }));
  }
  Stranger rank = door.knock();
  rank.link(2, 3);
  door.check_members();
}

TEST_CASE("unencrypted bytes pass over loopback only") {
  for (const char* address : {"127.0.0.1:80", "127.8.9.10:80", "[::1]:80", "[::ffff:127.0.0.1]:80"})
    CHECK(is_loopback(resolve_endpoint(address)));
  for (const char* address :
       {"192.0.2.1:80", "0.0.0.0:80", "[::]:80", "[2001:db8::1]:80", "[::ffff:192.0.2.1]:80", "128.0.0.1:80"}) {
    CAPTURE(address);
    const auto endpoint = resolve_endpoint(address);
    CHECK_FALSE(is_loopback(endpoint));
    CHECK(thrown_by([&] { check_loopback(endpoint); }) == Saying{ErrorCode::kPrecondition, "secret"});
  }
  // A caller that passes a transform has made its own choice.
  for (const bool secured : {false, true}) {
    TcpLinksConfig config;
    config.listener = listen_on("127.0.0.1", 0);
    config.addresses = {to_string(local_endpoint(config.listener)), "192.0.2.1:80"};
    config.incarnation = kIncarnation;
    if (secured) config.transform = tls_of(0);
    if (secured) {
      CHECK(make_tcp_links(std::move(config)) != nullptr);
    } else {
      CHECK_THROWS_AS(make_tcp_links(std::move(config)), Error);
    }
  }
}

}  // namespace
}  // namespace cairn::testing
