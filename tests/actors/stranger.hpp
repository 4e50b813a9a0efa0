// The other end of a link, played by a test through a plain socket.
#pragma once

#include <cairn/tests/support/torch.hpp>
//
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <cairn/actors/links/frames.hpp>
#include <cairn/actors/links/handshake.hpp>
#include <cairn/actors/links/plain_transform.hpp>
#include <cairn/actors/links/socket.hpp>
#include <cairn/actors/links/transform.hpp>
#include <cairn/base/error.hpp>
#include <cairn/tests/actors/links_world.hpp>
#include <cairn/tests/support/leak_check.hpp>

namespace cairn::testing {

class Stranger {
 public:
  // Connects to `address`.
  explicit Stranger(const std::string& address, const TransformFactory& transform = plain_transform())
      : transform_(transform(ConnectionSide::kOpener)) {
    auto progress = start_connect(resolve_endpoint(address), socket_);
    while (progress.state == ConnectState::kPending) {
      wait(POLLOUT);
      progress = check_connect(socket_);
    }
    REQUIRE(progress.state == ConnectState::kConnected);
    begin();
  }
  explicit Stranger(Socket accepted, const TransformFactory& transform = plain_transform())
      : transform_(transform(ConnectionSide::kAcceptor)), socket_(std::move(accepted)) {
    begin();
  }

  // Sends bytes or a frame through the transform, after its handshake. Returns false if the other
  // side has closed.
  bool say(const std::string& bytes) {
    while (!transform_->ready()) {
      if (!receive()) return false;
    }
    Transform::Wire wire;
    transform_->send(bytes, wire);
    return put(wire);
  }
  bool say(const v1::LinkFrame& frame) { return say(encode_frame(frame)); }
  // Says hello as `rank`, which the other side must accept.
  void link(int rank, int world_size, v1::LinkPurpose purpose = v1::LINK_PURPOSE_DATA) {
    REQUIRE(say(hello(rank, world_size, purpose)));
    REQUIRE(hear()->has_hello());
  }
  // Sends the bytes without the transform.
  bool say_raw(const std::string& bytes) { return put(Transform::Wire(bytes.begin(), bytes.end())); }

  // Returns the next frame, or nothing if the other side has closed or sent bytes that the
  // transform rejects.
  std::optional<v1::LinkFrame> hear() {
    for (;;) {
      ByteSpan bytes;
      const auto status = reader_.next(bytes);
      REQUIRE(status != FrameReader::Status::kTooLong);
      if (status == FrameReader::Status::kFrame) {
        v1::LinkFrame frame;
        REQUIRE(frame.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())));
        return frame;
      }
      if (!receive()) return std::nullopt;
    }
  }
  bool is_closed_on() { return !hear(); }
  // The transform's error for the last bytes received, if any.
  const std::optional<Error>& fault() const { return fault_; }

  // The first frame of an honest rank.
  static v1::LinkFrame hello(int rank, int world_size, v1::LinkPurpose purpose = v1::LINK_PURPOSE_DATA, std::uint64_t link = 77) {
    return make_hello(LinkIdentity{kIncarnation, rank, world_size, 4u << 20}, purpose, link);
  }

 private:
  void begin() {
    Transform::Wire wire;
    transform_->start(wire);
    REQUIRE(put(wire));
  }
  bool put(const Transform::Wire& bytes) {
    std::size_t at = 0;
    while (at < bytes.size()) {
      const auto sent = ::send(socket_.get(), bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
      if (sent > 0) {
        at += static_cast<std::size_t>(sent);
      } else if (errno == EAGAIN) {
        wait(POLLOUT);
      } else {
        return false;
      }
    }
    return true;
  }
  bool receive() {
    wait(POLLIN);
    char buffer[65536];
    const auto received = ::recv(socket_.get(), buffer, sizeof(buffer), 0);
    if (received <= 0) return false;
    Transform::Wire answer;
    try {
      transform_->receive(ByteSpan(buffer, static_cast<std::size_t>(received)), reader_.buffer(), answer);
    } catch (const Error& error) {
      fault_ = error;
    }
    put(answer);
    return !fault_;
  }
  void wait(short events) {
    pollfd question{socket_.get(), events, 0};
    REQUIRE(::poll(&question, 1, static_cast<int>(std::chrono::milliseconds(kPatience).count())) == 1);
  }

  std::unique_ptr<Transform> transform_;
  Socket socket_;
  FrameReader reader_{64u << 20};
  std::optional<Error> fault_;
};

inline bool eventually(const std::function<bool()>& condition) {
  const auto patience = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > patience) return false;
    std::this_thread::yield();
  }
  return true;
}

// Ranks 0 and 1 of three; the test plays rank 2.
template <class Kind>
struct Door : LinkWorld<Kind> {
  explicit Door(const RuntimeOptions& options = usual_options())
      : LinkWorld<Kind>(3), zero(this->come(0, options)), one(this->come(1, options)) {}
  // Checks that ranks 0 and 1 still exchange messages.
  void check_members() {
    const std::string text = "still here " + std::to_string(++count_);
    zero.send(1, text);
    REQUIRE(one.log().wait_messages(
        0, one.log().messages(0).size() + (one.log().messages(0).empty() || one.log().messages(0).back() != text)));
    CHECK(one.log().messages(0).back() == text);
    CHECK(zero.log().count(LinkEvent::kDown, 1) == 0);
  }
  const std::string& address() { return this->kind.address(0); }
  const LinkCounters& counters() { return this->kind.counters(0); }
  // Connects to rank 0 as a peer with a rank's transform.
  Stranger knock() { return Stranger(address(), this->kind.transform()); }

  LinkRank zero;
  LinkRank one;

 private:
  int count_ = 0;
};

}  // namespace cairn::testing
