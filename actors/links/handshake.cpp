#include <cairn/actors/links/handshake.hpp>

namespace cairn {

v1::LinkFrame make_hello(const LinkIdentity& self, v1::LinkPurpose purpose, std::uint64_t link) {
  v1::LinkFrame frame;
  auto& hello = *frame.mutable_hello();
  hello.set_magic(kLinkMagic);
  hello.set_protocol_version(kLinkProtocolVersion);
  hello.set_incarnation(self.incarnation);
  hello.set_rank(static_cast<std::uint32_t>(self.rank));
  hello.set_world_size(static_cast<std::uint32_t>(self.world_size));
  hello.set_purpose(purpose);
  hello.set_link(link);
  hello.set_frame_bytes_max(self.frame_bytes_max);
  hello.set_process(self.process);
  return frame;
}

v1::LinkFrame make_refusal(v1::LinkRefusalReason reason, const std::string& why) {
  v1::LinkFrame frame;
  frame.mutable_refusal()->set_reason(reason);
  frame.mutable_refusal()->set_why(why);
  return frame;
}

v1::LinkFrame make_goodbye(const std::string& why, bool was_silent, bool leaves) {
  v1::LinkFrame frame;
  frame.mutable_goodbye()->set_why(why);
  frame.mutable_goodbye()->set_silent(was_silent);
  frame.mutable_goodbye()->set_leaves(leaves);
  return frame;
}

bool is_hello(const v1::LinkFrame& frame) {
  return frame.has_hello() && frame.hello().magic() == kLinkMagic && frame.hello().frame_bytes_max() >= kFrameBytesMin &&
         (frame.hello().purpose() == v1::LINK_PURPOSE_DATA || frame.hello().purpose() == v1::LINK_PURPOSE_HEARTBEAT);
}

std::optional<v1::LinkRefusal> find_fault(const v1::LinkHello& hello, const LinkIdentity& self) {
  const auto fault = [](v1::LinkRefusalReason reason, const std::string& why) {
    v1::LinkRefusal refusal;
    refusal.set_reason(reason);
    refusal.set_why(why);
    return refusal;
  };
  if (hello.protocol_version() != kLinkProtocolVersion) {
    return fault(v1::LINK_REFUSAL_REASON_PROTOCOL, "protocol version " + std::to_string(hello.protocol_version()) +
                                                       ", here it is " + std::to_string(kLinkProtocolVersion) +
                                                       ": all ranks must run the same Cairn");
  }
  // A peer that does not know the incarnation must not learn it from the refusal.
  if (hello.incarnation() != self.incarnation) {
    return fault(v1::LINK_REFUSAL_REASON_INCARNATION, "another incarnation of the world, or another world");
  }
  if (hello.world_size() != static_cast<std::uint32_t>(self.world_size)) {
    return fault(v1::LINK_REFUSAL_REASON_WORLD_SIZE,
                 "world size " + std::to_string(hello.world_size()) + ", here it is " + std::to_string(self.world_size));
  }
  if (hello.rank() >= static_cast<std::uint32_t>(self.world_size) || hello.rank() == static_cast<std::uint32_t>(self.rank)) {
    return fault(v1::LINK_REFUSAL_REASON_RANK, "rank " + std::to_string(hello.rank()) + " is not another rank of this world");
  }
  return std::nullopt;
}

bool may_be_tried_again(v1::LinkRefusalReason reason) {
  return reason == v1::LINK_REFUSAL_REASON_DUPLICATE || reason == v1::LINK_REFUSAL_REASON_CROSSED ||
         reason == v1::LINK_REFUSAL_REASON_NO_LINK;
}

}  // namespace cairn
