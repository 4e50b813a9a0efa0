// The behaviour common to every kind of links.
#include <cairn/tests/support/torch.hpp>

#include <type_traits>
//
#include <cairn/tests/actors/links_world.hpp>
#include <cairn/tests/support/leak_check.hpp>

namespace cairn::testing {
namespace {

RuntimeOptions impatient_options() {
  RuntimeOptions options;
  options.connect_deadline = std::chrono::milliseconds(100);
  return options;
}

std::vector<std::string> numbered(const std::string& prefix, std::size_t count) {
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < count; ++i) texts.push_back(prefix + std::to_string(i));
  return texts;
}

// Returns bytes that vary with their position, so that a misplaced section is noticed.
std::string pattern(std::size_t size) {
  std::string text(size, '\0');
  for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>(i * 2654435761u >> 13);
  return text;
}

// Links in memory do not tell it from other ends.
template <class Kind>
constexpr LinkDownCause cause_of_leaving() {
  return std::is_same_v<Kind, MemoryKind> ? LinkDownCause::kClosed : LinkDownCause::kLeft;
}

TEST_CASE_TEMPLATE("messages arrive once each, in the order of each sender", Kind, MemoryKind, TcpKind, TlsKind) {
  LinkWorld<Kind> world(3);
  LinkRank zero = world.come(0);
  LinkRank one = world.come(1);
  LinkRank two = world.come(2);
  const auto from_one = numbered("one ", 500);
  const auto from_two = numbered("two ", 500);
  const auto from_zero = numbered("zero ", 500);
  for (std::size_t i = 0; i < 500; ++i) {
    one.send(0, from_one[i]);
    two.send(0, from_two[i]);
    zero.send(1, from_zero[i]);
  }
  REQUIRE(zero.log().wait_messages(1, 500));
  REQUIRE(zero.log().wait_messages(2, 500));
  REQUIRE(one.log().wait_messages(0, 500));
  CHECK(zero.log().messages(1) == from_one);
  CHECK(zero.log().messages(2) == from_two);
  CHECK(one.log().messages(0) == from_zero);
  CHECK(zero.log().count(LinkEvent::kUp, 1) == 1);
  CHECK(one.log().count(LinkEvent::kUp, 0) == 1);
  CHECK(one.log().count(LinkEvent::kUp, 2) == 0);
  CHECK(one.log().count(LinkEvent::kDown, 0) == 0);
  CHECK(zero.log().events().front().kind == LinkEvent::kUp);
}

TEST_CASE_TEMPLATE("two ranks that open at once have one link, and lose nothing", Kind, MemoryKind, TcpKind, TlsKind) {
  LeakCheck leaks;
  LinkSystem system;
  for (int round = 0; round < 20; ++round) {
    Kind kind(2);
    LinkRank zero(*system, kind.of(0), 0, usual_options());
    LinkRank one(*system, kind.of(1), 1, usual_options());
    const auto from_zero = numbered("zero ", 10);
    const auto from_one = numbered("one ", 10);
    for (std::size_t i = 0; i < 10; ++i) {
      (round % 2 == 0 ? zero : one).send(round % 2 == 0 ? 1 : 0, (round % 2 == 0 ? from_zero : from_one)[i]);
      (round % 2 == 0 ? one : zero).send(round % 2 == 0 ? 0 : 1, (round % 2 == 0 ? from_one : from_zero)[i]);
    }
    REQUIRE(zero.log().wait_messages(1, 10));
    REQUIRE(one.log().wait_messages(0, 10));
    CHECK(zero.log().messages(1) == from_one);
    CHECK(one.log().messages(0) == from_zero);
    CHECK(zero.log().count(LinkEvent::kUp, 1) == 1);
    CHECK(one.log().count(LinkEvent::kUp, 0) == 1);
    CHECK(zero.log().count(LinkEvent::kDown, 1) == 0);
  }
}

TEST_CASE_TEMPLATE("messages of any size arrive whole", Kind, MemoryKind, TcpKind, TlsKind) {
  LinkWorld<Kind> world(2);
  auto options = usual_options();
  options.frame_bytes_max = 64u << 10;
  LinkRank zero = world.come(0, options);
  options.frame_bytes_max = 4u << 20;  // the smaller limit applies
  LinkRank one = world.come(1, options);
  const std::vector<std::size_t> sizes = {0, 1, 65'471, 65'472, 65'473, 65'536, 200'000, 5u << 20, 0, 3};
  for (const auto size : sizes) {
    zero.send(1, pattern(size));
    one.send(0, pattern(size));
  }
  REQUIRE(one.log().wait_messages(0, sizes.size()));
  REQUIRE(zero.log().wait_messages(1, sizes.size()));
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    CHECK((one.log().messages(0)[i] == pattern(sizes[i])));
    CHECK((zero.log().messages(1)[i] == pattern(sizes[i])));
  }
}

TEST_CASE_TEMPLATE("a message waits for a rank that comes later", Kind, MemoryKind, TcpKind, TlsKind) {
  LinkWorld<Kind> world(2);
  LinkRank zero = world.come(0);
  zero.send(1, "first");
  zero.send(1, "second");
  LinkRank one = world.come(1);
  REQUIRE(one.log().wait_messages(0, 2));
  CHECK(one.log().messages(0) == std::vector<std::string>{"first", "second"});
  one.send(0, "answer");
  REQUIRE(zero.log().wait_messages(1, 1));
}

TEST_CASE_TEMPLATE("a rank that does not come is unreachable", Kind, MemoryKind, TcpKind, TlsKind) {
  LinkWorld<Kind> world(2);
  if constexpr (std::is_base_of_v<TcpKind, Kind>) world.kind.abandon(1);
  LinkRank zero = world.come(0, impatient_options());
  zero.send(1, "anyone?");
  const auto down = zero.log().wait_down(1);
  CHECK(down.cause == LinkDownCause::kUnreachable);
  CHECK(down.why.find("rank 1") != std::string::npos);
  CHECK(zero.log().count(LinkEvent::kUp, 1) == 0);
}

TEST_CASE_TEMPLATE("a link that was opened without a message tells of the other rank's end", Kind, MemoryKind, TcpKind, TlsKind) {
  LinkWorld<Kind> world(2);
  LinkRank zero = world.come(0);
  {
    LinkRank one = world.come(1);
    one.open(0);
    one.open(0);
    REQUIRE(zero.log().wait_up(1));
    REQUIRE(one.log().wait_up(0));
  }
  CHECK(zero.log().wait_down(1).cause == cause_of_leaving<Kind>());
  CHECK(zero.log().count(LinkEvent::kUp, 1) == 1);
  CHECK(zero.log().count(LinkEvent::kMessage, 1) == 0);
}

TEST_CASE_TEMPLATE("a rank that leaves is down, and unreachable from then on", Kind, MemoryKind, TcpKind, TlsKind) {
  LinkWorld<Kind> world(2);
  LinkRank zero = world.come(0, impatient_options());
  LinkRank one = world.come(1, impatient_options());
  zero.send(1, "hello");
  REQUIRE(one.log().wait_messages(0, 1));
  one.send(0, "last words");
  LinkDownCause cause = LinkDownCause::kClosed;
  SUBCASE("closed") {
    cause = cause_of_leaving<Kind>();
    one.close();
  }
  SUBCASE("its owner died") { one.kill_owner(); }
  const auto down = zero.log().wait_down(1);
  CHECK(down.cause == cause);
  CHECK(down.why.find("rank 1") != std::string::npos);
  CHECK(zero.log().messages(1) == std::vector<std::string>{"last words"});
  zero.send(1, "still there?");
  CHECK(zero.log().wait_down(1, 2).cause == LinkDownCause::kUnreachable);
}

TEST_CASE_TEMPLATE("links that died are made anew at the same address", Kind, MemoryKind, TcpKind, TlsKind) {
  LinkWorld<Kind> world(2);
  LinkRank zero = world.come(0);
  {
    LinkRank one = world.come(1);
    zero.send(1, "hello");
    REQUIRE(one.log().wait_messages(0, 1));
    one.kill_owner();
  }
  const auto down = zero.log().wait_down(1);
  CHECK_MESSAGE(down.why.find("its supervisor died") != std::string::npos, down.why);
  LinkRank again = world.come(1);
  zero.send(1, "hello again");
  CHECK(again.log().wait_messages(0, 1));
}

TEST_CASE_TEMPLATE("a dropped link is down on both sides, and reconnects when needed", Kind, MemoryKind, TcpKind, TlsKind) {
  LinkWorld<Kind> world(3);
  LinkRank zero = world.come(0);
  LinkRank one = world.come(1);
  LinkRank two = world.come(2);
  zero.send(1, "before");
  zero.send(2, "before");
  REQUIRE(one.log().wait_messages(0, 1));
  REQUIRE(two.log().wait_messages(0, 1));
  int dropped_of_two = 0;
  SUBCASE("one link") { zero.drop(1); }
  SUBCASE("all links") {
    zero.drop(-1);
    dropped_of_two = 1;
    CHECK(two.log().wait_down(0).cause == LinkDownCause::kClosed);
  }
  CHECK(zero.log().wait_down(1).cause == LinkDownCause::kClosed);
  CHECK(one.log().wait_down(0).cause == LinkDownCause::kClosed);
  one.send(0, "after");
  two.send(0, "after");
  REQUIRE(zero.log().wait_messages(1, 1));
  REQUIRE(zero.log().wait_messages(2, 1));
  CHECK(zero.log().messages(1) == std::vector<std::string>{"after"});
  CHECK(zero.log().count(LinkEvent::kUp, 1) == 2);
  CHECK(zero.log().count(LinkEvent::kDown, 2) == static_cast<std::size_t>(dropped_of_two));
}

TEST_CASE_TEMPLATE("links whose owner is gone before they begin end as well", Kind, MemoryKind, TcpKind, TlsKind) {
  LeakCheck leaks;
  LinkSystem system;
  for (int round = 0; round < 100; ++round) {
    Kind kind(1);
    caf::actor links;
    {
      const auto owner = (*system).template spawn<RecordingOwner>(std::make_shared<LinkLog>());
      caf::anon_send_exit(owner, caf::exit_reason::user_shutdown);
      links = kind.of(0).spawn(*system, 0, usual_options(), owner);
    }
    caf::scoped_actor self{*system};
    self->wait_for(links);
  }
}

TEST_CASE_TEMPLATE("what waits for a rank that does not take it is bounded", Kind, MemoryKind, TcpKind, TlsKind) {
  LinkWorld<Kind> world(2);
  auto options = usual_options();
  options.unsent_bytes_max = 16u << 20;
  options.unread_bytes_max = 1u << 20;
  LinkRank zero = world.come(0, options);
  LinkRank one = world.come(1, options);
  const auto bytes = std::make_shared<const std::string>(pattern(1u << 20));
  zero.send(1, bytes);
  REQUIRE(one.log().wait_messages(0, 1));
  for (int i = 0; i < 80; ++i) zero.send(1, bytes);  // exceeds all limits and kernel socket buffers together
  const auto down = zero.log().wait_down(1);
  CHECK(down.cause == LinkDownCause::kOverflow);
  CHECK(down.why.find("unsent_bytes_max") != std::string::npos);
  CHECK(one.log().wait_down(0).cause == LinkDownCause::kClosed);
  // Once the receiver releases its messages, a new link works normally.
  const auto patience = std::chrono::steady_clock::now() + kPatience;
  bool arrived = false;
  while (!arrived && std::chrono::steady_clock::now() < patience) {
    one.log().forget();
    zero.send(1, "again");
    arrived =
        one.log().wait_for_any([](const LinkEvent& event) { return event.kind == LinkEvent::kMessage && *event.bytes == "again"; });
  }
  CHECK(arrived);
}

TEST_CASE_TEMPLATE("sends that cannot be meant are answered", Kind, MemoryKind, TcpKind, TlsKind) {
  LinkWorld<Kind> world(2);
  auto options = usual_options();
  options.message_bytes_max = 1000;
  LinkRank zero = world.come(0, options);
  zero.send(2, "nobody");
  CHECK(zero.log().wait_down(2).cause == LinkDownCause::kUnreachable);
  zero.send(-1, "nobody");
  CHECK(zero.log().wait_down(-1).cause == LinkDownCause::kUnreachable);
  zero.send(1, pattern(1001));
  CHECK(zero.log().wait_down(1).cause == LinkDownCause::kOverflow);
}

TEST_CASE_TEMPLATE("a rank may speak to itself", Kind, MemoryKind, TcpKind, TlsKind) {
  LinkWorld<Kind> world(1);
  LinkRank zero = world.come(0);
  zero.send(0, "me");
  zero.send(0, "myself");
  REQUIRE(zero.log().wait_messages(0, 2));
  CHECK(zero.log().messages(0) == std::vector<std::string>{"me", "myself"});
  CHECK(zero.log().count(LinkEvent::kUp, 0) == 1);
}

}  // namespace
}  // namespace cairn::testing
