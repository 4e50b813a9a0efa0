// The wire format of links: frames, sections, hellos and addresses. No sockets, no actors.
#include <cairn/tests/support/torch.hpp>
//
#include <random>

#include <cairn/actors/links/frames.hpp>
#include <cairn/actors/links/handshake.hpp>
#include <cairn/actors/links/socket.hpp>
#include <cairn/base/error.hpp>
#include <cairn/tests/support/thrown.hpp>

namespace cairn::testing {
namespace {

v1::LinkFrame decoded(ByteSpan bytes) {
  v1::LinkFrame frame;
  REQUIRE(frame.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())));
  return frame;
}

// Returns the section in a frame that a splitter made.
v1::LinkSection section_of(const std::string& frame) {
  return decoded(ByteSpan(frame.data() + kFramePrefixBytes, frame.size() - kFramePrefixBytes)).section();
}

TEST_CASE("sections never exceed a frame, and make the message again") {
  std::mt19937 random(7);
  MessageSplitter splitter;
  std::vector<std::shared_ptr<const std::string>> messages;
  std::size_t total = 0;
  for (int i = 0; i < 60; ++i) {
    std::string text(random() % 40'000, '\0');
    if (i % 10 == 0) text.clear();
    for (auto& byte : text) byte = static_cast<char>(random());
    total += text.size();
    messages.push_back(std::make_shared<const std::string>(std::move(text)));
    if (i % 3 == 0) {  // pass it in two parts
      const std::size_t cut = messages.back()->size() / (1 + random() % 4);
      splitter.push(std::make_shared<const std::string>(messages.back()->substr(0, cut)),
                    std::make_shared<const std::string>(messages.back()->substr(cut)));
    } else {
      splitter.push(messages.back());
    }
  }
  CHECK(splitter.bytes() == total);
  MessageAssembler assembler(40'000);
  std::size_t arrived = 0;
  while (!splitter.empty()) {
    const std::size_t limit = kFrameBytesMin + random() % 10'000;
    const std::string frame = splitter.next_frame(limit);
    CHECK(frame.size() <= limit + kFramePrefixBytes);
    auto section = section_of(frame);
    std::string message;
    if (assembler.add(section, message)) {
      CHECK((message == *messages[arrived]));
      ++arrived;
    }
  }
  CHECK(arrived == messages.size());
  CHECK(splitter.bytes() == 0);
}

TEST_CASE("sections that do not fit are refused") {
  const auto section = [](std::uint64_t message, std::uint64_t total, std::uint64_t offset, const std::string& bytes) {
    v1::LinkSection made;
    made.set_message(message);
    made.set_total(total);
    made.set_offset(offset);
    made.set_bytes(bytes);
    return made;
  };
  const auto refuses = [](MessageAssembler& assembler, v1::LinkSection wrong) {
    std::string message;
    CHECK_THROWS_AS(assembler.add(wrong, message), Error);
  };
  std::string message;
  MessageAssembler assembler(1000);
  refuses(assembler, section(2, 5, 0, "hello"));      // the first number is 1
  refuses(assembler, section(1, 5, 1, "ello"));       // it must begin at offset 0
  refuses(assembler, section(1, 1001, 0, "hello"));   // too long
  refuses(assembler, section(1, ~0ull, 0, "hello"));  // far too long
  refuses(assembler, section(1, 4, 0, "hello"));      // more than announced
  refuses(assembler, section(1, 4, 0, ""));           // would never end
  auto first = section(1, 10, 0, "hello");
  CHECK_FALSE(assembler.add(first, message));
  refuses(assembler, section(1, 10, 0, "hello"));   // twice
  refuses(assembler, section(2, 5, 0, "hello"));    // another message in between
  refuses(assembler, section(1, 10, 5, "hello!"));  // beyond the end
  refuses(assembler, section(1, 4, 5, "hello"));    // the total shrinks
  auto second = section(1, 10, 5, "world");
  REQUIRE(assembler.add(second, message));
  CHECK(message == "helloworld");
  auto empty = section(2, 0, 0, "");
  REQUIRE(assembler.add(empty, message));
  CHECK(message.empty());
}

TEST_CASE("a hello is checked field by field") {
  const LinkIdentity self{"0123456789abcdef0123456789abcdef", 1, 4, 1u << 20};
  LinkIdentity other = self;
  other.rank = 2;
  const auto hello = [&] { return make_hello(other, v1::LINK_PURPOSE_DATA, 99); };
  CHECK(is_hello(hello()));
  CHECK_FALSE(find_fault(hello().hello(), self));

  const auto reason = [&](const v1::LinkFrame& frame) {
    const auto fault = find_fault(frame.hello(), self);
    REQUIRE(fault);
    CHECK(fault->why().find(self.incarnation) == std::string::npos);
    return fault->reason();
  };
  other.rank = 1;
  CHECK(reason(hello()) == v1::LINK_REFUSAL_REASON_RANK);
  other.rank = 4;
  CHECK(reason(hello()) == v1::LINK_REFUSAL_REASON_RANK);
  other.rank = -1;
  CHECK(reason(hello()) == v1::LINK_REFUSAL_REASON_RANK);
  other.rank = 2;
  other.world_size = 5;
  CHECK(reason(hello()) == v1::LINK_REFUSAL_REASON_WORLD_SIZE);
  other.incarnation[0] = 'f';
  CHECK(reason(hello()) == v1::LINK_REFUSAL_REASON_INCARNATION);
  auto newer = hello();
  newer.mutable_hello()->set_protocol_version(kLinkProtocolVersion + 1);
  CHECK(reason(newer) == v1::LINK_REFUSAL_REASON_PROTOCOL);

  auto foreign = hello();
  foreign.mutable_hello()->set_magic(1);
  CHECK_FALSE(is_hello(foreign));
  foreign = hello();
  foreign.mutable_hello()->set_frame_bytes_max(10);
  CHECK_FALSE(is_hello(foreign));
  foreign = hello();
  foreign.mutable_hello()->set_purpose(v1::LINK_PURPOSE_UNSPECIFIED);
  CHECK_FALSE(is_hello(foreign));
  CHECK_FALSE(is_hello(make_goodbye("")));
}

TEST_CASE("addresses are read and written alike") {
  CHECK(to_string(resolve_endpoint("127.0.0.1:4000")) == "127.0.0.1:4000");
  CHECK(to_string(resolve_endpoint("[::1]:65535")) == "[::1]:65535");
  CHECK(to_string(resolve_endpoint("localhost:80")) == "127.0.0.1:80");
  for (const char* wrong : {"", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:0", ":80",
                            "::1:80", "[::1:80"}) {
    CAPTURE(wrong);
    CHECK(thrown_by([&] { resolve_endpoint(wrong); }).code == ErrorCode::kInvalidArgument);
  }
  CHECK(thrown_by([&] { resolve_endpoint("no-such-host.invalid:80"); }).code == ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace cairn::testing
