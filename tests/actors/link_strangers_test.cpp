// Strangers that connect to a rank's listener, and ranks that break the protocol. The test plays
// the other end through a plain socket.
#include <cairn/tests/support/torch.hpp>
//
#include <poll.h>
#include <sys/socket.h>

#include <random>

#include <cairn/tests/actors/stranger.hpp>

namespace cairn::testing {
namespace {

// Listens at the address of a rank without being that rank.
template <class Kind>
class Impostor {
 public:
  Impostor(Kind& kind, int rank) : kind_(kind), listener_(vacated(kind, rank)) {}
  // Accepts the next connection.
  Stranger accept() {
    pollfd question{listener_.get(), POLLIN, 0};
    REQUIRE(::poll(&question, 1, static_cast<int>(std::chrono::milliseconds(kPatience).count())) == 1);
    return Stranger{Socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)), kind_.transform()};
  }
  // Accepts all connections that are queued, and returns their number.
  int count_queued() {
    int count = 0;
    for (pollfd question{listener_.get(), POLLIN, 0}; ::poll(&question, 1, 0) == 1; ++count)
      REQUIRE(Socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)).valid());
    return count;
  }

 private:
  static Socket vacated(Kind& kind, int rank) {
    kind.abandon(rank);
    return listen_on("127.0.0.1", split_address(kind.address(rank)).port);
  }
  Kind& kind_;
  const Socket listener_;
};

TEST_CASE_TEMPLATE("connections that send random bytes are closed", Kind, TcpKind, TlsKind) {
  Door<Kind> door;
  std::mt19937 random(1);
  for (int i = 0; i < 20; ++i) {
    Stranger stranger(door.address());
    std::string bytes(1 + random() % 5000, '\0');
    for (auto& byte : bytes) byte = static_cast<char>(random());
    bytes[0] = static_cast<char>(i % 2);  // half of them announce a valid length
    stranger.say(bytes + std::string(70'000, 'x'));
    CHECK(stranger.is_closed_on());
  }
  CHECK(eventually([&] { return door.counters().garbage + door.counters().oversize == 20; }));
  door.check_members();
}

TEST_CASE_TEMPLATE("a huge length is refused before memory is allocated for it", Kind, TcpKind, TlsKind) {
  Door<Kind> door;
  Stranger stranger = door.knock();
  stranger.say(std::string("\xff\xff\xff\xff", 4));
  CHECK(stranger.is_closed_on());
  Stranger second = door.knock();
  second.say(std::string("\0\1\0\1", 4));  // a length of 64 KiB plus 1
  CHECK(second.is_closed_on());
  CHECK(door.counters().oversize == 2);
  door.check_members();
}

TEST_CASE_TEMPLATE("a rank has one connection of each purpose", Kind, TcpKind, TlsKind) {
  Door<Kind> door;
  Stranger data = door.knock();
  data.link(2, 3);
  REQUIRE(door.zero.log().wait_up(2));
  Stranger again = door.knock();
  again.say(Stranger::hello(2, 3));
  CHECK(again.hear()->refusal().reason() == v1::LINK_REFUSAL_REASON_DUPLICATE);
  Stranger other_link = door.knock();
  other_link.say(Stranger::hello(2, 3, v1::LINK_PURPOSE_HEARTBEAT, 78));
  CHECK(other_link.hear()->refusal().reason() == v1::LINK_REFUSAL_REASON_NO_LINK);
  Stranger beats = door.knock();
  beats.link(2, 3, v1::LINK_PURPOSE_HEARTBEAT);
  Stranger beats_again = door.knock();
  beats_again.say(Stranger::hello(2, 3, v1::LINK_PURPOSE_HEARTBEAT));
  CHECK(beats_again.hear()->refusal().reason() == v1::LINK_REFUSAL_REASON_DUPLICATE);
  CHECK(beats.hear()->has_beat());
  CHECK(door.zero.log().count(LinkEvent::kDown, 2) == 0);
  door.check_members();
}

TEST_CASE_TEMPLATE("a peer that breaks the protocol loses only its own link", Kind, TcpKind, TlsKind) {
  Door<Kind> door;
  Stranger data = door.knock();
  data.link(2, 3);
  REQUIRE(door.zero.log().wait_up(2));
  v1::LinkFrame frame;
  SUBCASE("a frame that is none") { data.say(std::string("\0\0\0\4\xff\xff\xff\xff", 8)); }
  SUBCASE("a frame that is too long") { data.say(std::string("\x7f\0\0\0", 4)); }
  SUBCASE("a second hello") { data.say(Stranger::hello(2, 3)); }
  SUBCASE("a beat on the data connection") {
    frame.mutable_beat();
    data.say(frame);
  }
  SUBCASE("a section out of place") {
    frame.mutable_section()->set_message(5);
    data.say(frame);
  }
  SUBCASE("a message that is too long") {
    frame.mutable_section()->set_message(1);
    frame.mutable_section()->set_total(1ull << 40);
    frame.mutable_section()->set_bytes("x");
    data.say(frame);
  }
  const auto down = door.zero.log().wait_down(2);
  CHECK(down.cause == LinkDownCause::kProtocol);
  CHECK(down.why.find("rank 2") != std::string::npos);
  const auto last = data.hear();
  REQUIRE(last);
  CHECK(last->has_goodbye());
  CHECK(data.is_closed_on());
  CHECK(door.zero.log().count(LinkEvent::kMessage, 2) == 0);
  door.check_members();
}

TEST_CASE_TEMPLATE("silent connections are closed, and ranks are served meanwhile", Kind, TcpKind, TlsKind) {
  auto options = usual_options();
  options.handshake_deadline = std::chrono::milliseconds(300);
  Door<Kind> door(options);
  std::vector<std::unique_ptr<Stranger>> idle;
  for (int i = 0; i < 200; ++i) idle.push_back(std::make_unique<Stranger>(door.address()));
  door.check_members();
  for (auto& stranger : idle) CHECK(stranger->is_closed_on());
  CHECK(eventually([&] { return door.counters().handshake_deadline + door.counters().crowded_out == 200; }));
  door.check_members();
}

TEST_CASE_TEMPLATE("a peer that falls silent is down", Kind, TcpKind, TlsKind) {
  auto options = usual_options();
  options.heartbeat_timeout = std::chrono::milliseconds(500);
  options.connect_deadline = std::chrono::seconds(1);
  Door<Kind> door(options);
  Stranger data = door.knock();
  data.link(2, 3);
  SUBCASE("it makes no heartbeat connection in time") {}
  SUBCASE("it has a heartbeat connection and says nothing there") {
    Stranger beats = door.knock();
    beats.link(2, 3, v1::LINK_PURPOSE_HEARTBEAT);
    CHECK(beats.hear()->has_beat());
    CHECK(door.zero.log().wait_down(2).cause == LinkDownCause::kSilent);
  }
  const auto down = door.zero.log().wait_down(2);
  CHECK(down.cause == LinkDownCause::kSilent);
  // A peer that only stood still learns why it was cut off.
  const auto last_words = data.hear();
  REQUIRE(last_words);
  CHECK(last_words->goodbye().why().find("nothing was heard of rank 2") == 0);
  CHECK(data.is_closed_on());
  door.check_members();
}

TEST_CASE_TEMPLATE("a link has no heartbeat timeout before it has a heartbeat connection", Kind, TcpKind, TlsKind) {
  LinkWorld<Kind> world(4);
  auto options = usual_options();
  options.heartbeat_timeout = std::chrono::seconds(1);
  options.connect_deadline = std::chrono::hours(1);
  LinkRank zero = world.come(0, options);
  const auto link = [&](int rank, v1::LinkPurpose purpose) {
    auto stranger = std::make_unique<Stranger>(world.kind.address(0), world.kind.transform());
    stranger->link(rank, 4, purpose);
    return stranger;
  };
  const auto without_beats = link(2, v1::LINK_PURPOSE_DATA);
  const auto with_beats = link(3, v1::LINK_PURPOSE_DATA);
  const auto beats = link(3, v1::LINK_PURPOSE_HEARTBEAT);
  // By the time rank 3 is found silent, rank 2 has been silent for longer.
  CHECK(zero.log().wait_down(3).cause == LinkDownCause::kSilent);
  CHECK(zero.log().count(LinkEvent::kDown, 2) == 0);
}

TEST_CASE_TEMPLATE("a linked rank that no longer listens has ended, without a long wait", Kind, TcpKind, TlsKind) {
  LinkWorld<Kind> world(2);
  auto options = usual_options();
  options.connect_deadline = std::chrono::hours(1);
  LinkRank zero = world.come(0, options);
  {
    LinkRank one = world.come(1, options);
    zero.send(1, "hello");
    REQUIRE(one.log().wait_messages(0, 1));
  }
  CHECK(zero.log().wait_down(1).cause == LinkDownCause::kLeft);
  zero.send(1, "are you there");
  const auto down = zero.log().wait_down(1, 2);
  CHECK(down.cause == LinkDownCause::kUnreachable);
  CHECK(down.why.find("has ended") != std::string::npos);
}

TEST_CASE_TEMPLATE("a peer that loses one of its connections is down", Kind, TcpKind, TlsKind) {
  Door<Kind> door;
  auto data = std::make_unique<Stranger>(door.knock());
  data->link(2, 3);
  auto beats = std::make_unique<Stranger>(door.knock());
  beats->link(2, 3, v1::LINK_PURPOSE_HEARTBEAT);
  SUBCASE("the data connection") { data = nullptr; }
  SUBCASE("the heartbeat connection") { beats = nullptr; }
  CHECK(door.zero.log().wait_down(2).cause == LinkDownCause::kClosed);
}

// Rank 0 waits an hour, rank 1 longer than the default. With one deadline for both, rank 0 would
// give up as well by the time rank 1 does.
TEST_CASE_TEMPLATE("last frames wait until the drain deadline for a peer that does not read them", Kind, TcpKind, TlsKind) {
  LinkWorld<Kind> world(4);
  auto options = usual_options();
  options.drain_deadline = std::chrono::hours(1);
  LinkRank patient = world.come(0, options);
  options.drain_deadline = std::chrono::milliseconds(1500);
  LinkRank hasty = world.come(1, options);
  const auto greet = [&](int rank, int as, int world_size = 4) {
    auto stranger = std::make_unique<Stranger>(world.kind.address(rank), world.kind.transform());
    stranger->say(Stranger::hello(as, world_size));
    return stranger;
  };
  SUBCASE("a link that closes has data and a goodbye to send") {
    auto slow = greet(0, 2);
    const auto dead = greet(1, 3);
    REQUIRE(slow->hear()->has_hello());
    REQUIRE(dead->hear()->has_hello());
    const std::string message(32u << 20, 'm');  // more than the buffers of two sockets
    patient.send(2, message);
    hasty.send(3, message);
    std::thread closing([&] { patient.close(); });
    hasty.close();
    std::size_t heard = 0;
    bool left = false;
    while (const auto frame = slow->hear()) {
      heard += frame->section().bytes().size();
      left = frame->goodbye().leaves();
    }
    slow = nullptr;
    closing.join();
    CHECK(heard == message.size());
    CHECK(left);
  }
  SUBCASE("a refused peer does not close its connection") {
    const auto refused_by_patient = greet(0, 2, 5), refused_by_hasty = greet(1, 3, 5);
    CHECK(refused_by_hasty->hear()->has_refusal());
    CHECK(refused_by_hasty->is_closed_on());
    CHECK(eventually([&] { return !refused_by_hasty->say_raw("x"); }));
    CHECK(refused_by_patient->say_raw("x"));
    CHECK(refused_by_patient->say_raw("x"));  // the first would only be answered with a reset
    CHECK(refused_by_patient->hear()->has_refusal());
  }
}

TEST_CASE_TEMPLATE("heartbeats arrive while a long message is in flight", Kind, TcpKind, TlsKind) {
  auto options = usual_options();
  options.heartbeat_timeout = std::chrono::seconds(3);
  Door<Kind> door(options);
  Stranger data = door.knock();
  data.link(2, 3);
  Stranger beats = door.knock();
  beats.link(2, 3, v1::LINK_PURPOSE_HEARTBEAT);
  // Rank 0 queues 64 MiB for the test, which reads none of it. Rank 0's heartbeats still arrive,
  // and the test's heartbeats keep the link up.
  const auto message = std::make_shared<const std::string>(64u << 20, 'm');
  door.zero.send(2, message);
  v1::LinkFrame beat;
  beat.mutable_beat();
  for (int i = 0; i < 3; ++i) {
    REQUIRE(beats.hear()->has_beat());
    REQUIRE(beats.say(beat));
  }
  CHECK(door.zero.log().count(LinkEvent::kDown, 2) == 0);
  // Now the test reads it.
  std::size_t received = 0;
  while (received < message->size()) {
    const auto frame = data.hear();
    REQUIRE(frame);
    CHECK(frame->section().offset() == received);
    received += frame->section().bytes().size();
    beats.say(beat);
  }
  CHECK(received == message->size());
  door.check_members();
}

TEST_CASE_TEMPLATE("an opener ends the link after an invalid answer", Kind, TcpKind, TlsKind) {
  LinkWorld<Kind> world(2);
  Impostor<Kind> rank_1(world.kind, 1);
  LinkRank zero = world.come(0);
  zero.send(1, "hello");
  Stranger impostor = rank_1.accept();
  const auto hello = impostor.hear();
  REQUIRE(hello);
  CHECK(hello->hello().rank() == 0);
  CHECK(hello->hello().incarnation() == kIncarnation);
  const auto link = hello->hello().link();
  LinkDownCause expected = LinkDownCause::kProtocol;
  SUBCASE("garbage") { impostor.say(std::string("HTTP/1.1 400 Bad Request\r\n\r\n")); }
  SUBCASE("another rank") { impostor.say(Stranger::hello(0, 2, v1::LINK_PURPOSE_DATA, link)); }
  SUBCASE("another link") { impostor.say(Stranger::hello(1, 2, v1::LINK_PURPOSE_DATA, link + 1)); }
  SUBCASE("another incarnation") {
    impostor.say(make_hello(LinkIdentity{std::string(32, 'f'), 1, 2, 4u << 20}, v1::LINK_PURPOSE_DATA, link));
  }
  SUBCASE("a refusal for good") { impostor.say(make_refusal(v1::LINK_REFUSAL_REASON_INCARNATION, "who are you")); }
  const auto down = zero.log().wait_down(1);
  CHECK(down.cause == expected);
  CHECK(down.why.find("rank 1 at " + world.kind.address(1)) != std::string::npos);
}

TEST_CASE_TEMPLATE("an opener waits twice as long with each connection that is not answered", Kind, TcpKind, TlsKind) {
  LinkWorld<Kind> world(2);
  Impostor<Kind> rank_1(world.kind, 1);
  auto options = usual_options();
  options.handshake_deadline = std::chrono::milliseconds(50);
  options.connect_deadline = std::chrono::milliseconds(1500);
  options.heartbeat_timeout = std::chrono::milliseconds(40);  // for short ticks
  LinkRank zero = world.come(0, options);
  zero.send(1, "hello");
  // The kernel completes each connection and queues it, but the test accepts none.
  const auto down = zero.log().wait_down(1);
  CHECK(down.cause == LinkDownCause::kUnreachable);
  CHECK(down.why.find("no answer to a hello") != std::string::npos);
  // 50 + 100 + 200 + 400 + 800 ms exceed connect_deadline.
  CHECK(rank_1.count_queued() <= 5);
}

TEST_CASE_TEMPLATE("a refusal that may pass is tried again", Kind, TcpKind, TlsKind) {
  LinkWorld<Kind> world(2);
  Impostor<Kind> rank_1(world.kind, 1);
  LinkRank zero = world.come(0);
  zero.send(1, "hello");
  {
    auto first = rank_1.accept();
    REQUIRE(first.hear());
    first.say(make_refusal(v1::LINK_REFUSAL_REASON_DUPLICATE, "not yet"));
  }
  {
    auto second = rank_1.accept();  // sends nothing at all
    REQUIRE(second.hear());
  }
  auto third = rank_1.accept();
  const auto hello = third.hear();
  REQUIRE(hello);
  third.say(Stranger::hello(1, 2, v1::LINK_PURPOSE_DATA, hello->hello().link()));
  REQUIRE(zero.log().wait_up(1));
  const auto section = third.hear();
  REQUIRE(section);
  CHECK(section->section().bytes() == "hello");
}

}  // namespace
}  // namespace cairn::testing
