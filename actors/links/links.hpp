// Links: how messages travel between ranks. The one part that a simulated world replaces.
//
// A links actor serves one rank. Whoever spawned it (the rank's supervisor) is its owner and speaks to it in these messages; above
// it, everybody sees whole messages, never frames, sections or sockets. Bytes are encoded envelopes (messages/codec.hpp); the links
// actor does not look into them.
//
//   owner -> links   LinkSend{rank, bytes}     connects first if need be; order is kept per peer
//   owner -> links   LinkOpen{rank}            connects if need be, so that the end of that rank is noticed without a message
//   owner -> links   LinkDrop{rank}            ends the link with this peer, if there is one, as a network that fails would; for tests
//   owner -> links   LinkClose{}               closes everything and ends the actor
//   links -> owner   LinkUp{rank}              a peer's hello was accepted, or ours was
//   links -> owner   LinkMessage{rank, bytes}  exactly once each, in order, while the link is up
//   links -> owner   LinkDown{rank, cause, why}  after it nothing of that peer arrives before the next LinkUp
//   links -> owner   LinkRefused{what}         somebody was turned away at the door; of many at once only the first few are told
//
// Let go of a message's bytes once it is handled: they count against unread_bytes_max until the last owner drops them, and a peer with
// more than that outstanding is not read from meanwhile.
//
// A message to a peer that cannot be reached ends in LinkDown, never in silence.
#pragma once

#include <memory>
#include <string>

#include <caf/actor.hpp>
#include <caf/actor_system.hpp>
#include <caf/allowed_unsafe_message_type.hpp>

#include <cairn/actors/options.hpp>

namespace cairn {

using SharedBytes = std::shared_ptr<const std::string>;

struct LinkSend {
  int rank = 0;
  SharedBytes bytes;
  SharedBytes shared = nullptr;  // follows `bytes` in the same message; null: none. The part that many ranks get
};
// Returns the message in one piece.
inline SharedBytes whole(const LinkSend& message) {
  return message.shared ? std::make_shared<const std::string>(*message.bytes + *message.shared) : message.bytes;
}
struct LinkOpen {
  int rank = 0;
};
struct LinkDrop {
  int rank = 0;  // -1: every peer
};
struct LinkClose {};
struct LinkUp {
  int rank = 0;
};
struct LinkMessage {
  int rank = 0;
  SharedBytes bytes;
};
// kForbidden: one of the two sides did not prove that it knows the job's secret.
enum class LinkDownCause { kClosed = 1, kSilent, kUnreachable, kProtocol, kOverflow, kForbidden };
struct LinkDown {
  int rank = 0;
  LinkDownCause cause = LinkDownCause::kClosed;
  std::string why;
};
struct LinkRefused {
  const char* what = "";  // lives for ever
};

class LinksFactory {
 public:
  virtual ~LinksFactory() = default;
  // Spawns the links actor of `rank`; it ends with its owner.
  virtual caf::actor spawn(caf::actor_system& system, int rank, const RuntimeOptions& options, const caf::actor& owner) = 0;
};

// In-memory queues between the ranks of one process. One factory serves one world.
std::shared_ptr<LinksFactory> make_memory_links(int world_size);

}  // namespace cairn

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cairn::LinkSend)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cairn::LinkOpen)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cairn::LinkDrop)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cairn::LinkClose)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cairn::LinkUp)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cairn::LinkMessage)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cairn::LinkDown)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cairn::LinkRefused)
