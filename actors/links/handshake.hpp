// The handshake of a connection. The first frame in each direction decides whether the connection
// is accepted. This code does no I/O.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include <cairn/messages/link.pb.h>

namespace cairn {

inline constexpr std::uint32_t kLinkMagic = 0x4341524e;
inline constexpr std::uint32_t kLinkProtocolVersion = 3;
// The smallest frame_bytes_max that a rank may be configured with. A hello with a smaller one is
// invalid.
inline constexpr std::size_t kFrameBytesMin = 4096;
// The largest frame_bytes_max that a rank may be configured with.
inline constexpr std::size_t kFrameBytesLimit = std::size_t{1} << 30;

// The values that a rank sends in its hello, and with which it compares its peers' hellos.
struct LinkIdentity {
  std::string incarnation;
  int rank = 0;
  int world_size = 1;
  std::size_t frame_bytes_max = 0;
  std::string process{};  // as `process_name` returns it
};

v1::LinkFrame make_hello(const LinkIdentity& self, v1::LinkPurpose purpose, std::uint64_t link);
v1::LinkFrame make_refusal(v1::LinkRefusalReason reason, const std::string& why);
v1::LinkFrame make_goodbye(const std::string& why, bool was_silent = false, bool leaves = false);

// Returns whether the frame is a hello of Cairn. Checks magic number, purpose and frame_bytes_max.
bool is_hello(const v1::LinkFrame& frame);
// Returns the reason to refuse a hello, or nothing if it may be accepted. Only compares `hello`
// with `self`: the caller checks whether the state of its links allows the connection.
std::optional<v1::LinkRefusal> find_fault(const v1::LinkHello& hello, const LinkIdentity& self);
// Returns whether a connecting side that was refused for `reason` may succeed if it retries later.
bool may_be_tried_again(v1::LinkRefusalReason reason);

}  // namespace cairn
