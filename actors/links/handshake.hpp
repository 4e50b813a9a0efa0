// Who may be linked to whom: the first frame in each direction of a connection. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include <link.pb.h>

namespace cairn {

inline constexpr std::uint32_t kLinkMagic = 0x4341524e;
inline constexpr std::uint32_t kLinkProtocolVersion = 1;
// Nobody needs smaller frames than this; a peer that asks for them is none.
inline constexpr std::size_t kFrameBytesMin = 4096;
// The most that a rank may be told to accept.
inline constexpr std::size_t kFrameBytesLimit = std::size_t{1} << 30;

// What a rank says of itself, and expects of others.
struct LinkIdentity {
  std::string incarnation;
  int rank = 0;
  int world_size = 1;
  std::size_t frame_bytes_max = 0;
};

v1::LinkFrame make_hello(const LinkIdentity& self, v1::LinkPurpose purpose, std::uint64_t link);
v1::LinkFrame make_refusal(v1::LinkRefusalReason reason, const std::string& why);
v1::LinkFrame make_goodbye(const std::string& why);

// Whether these are words of Cairn's at all: magic, purpose, limits.
bool is_hello(const v1::LinkFrame& frame);
// Why a hello cannot be accepted from anyone, whatever the state of the links; none if it can.
std::optional<v1::LinkRefusal> find_fault(const v1::LinkHello& hello, const LinkIdentity& self);
// Whether the same opening may succeed a little later.
bool may_be_tried_again(v1::LinkRefusalReason reason);

}  // namespace cairn
