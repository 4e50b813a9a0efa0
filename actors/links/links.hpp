// Links carry messages between ranks. A simulated world replaces only the links.
//
// A links actor serves one rank. Its owner, the rank's supervisor, spawns it and exchanges the
// messages below with it. The owner sees whole messages, never frames, sections or sockets. `bytes`
// is an encoded envelope (messages/codec.hpp), which the links actor does not interpret.
//
//   owner -> links   LinkSend{rank, bytes}       connects if necessary; keeps the order per peer
//   owner -> links   LinkOpen{rank}              connects if necessary, so that the exit of the
//                                                rank's process is noticed even without a message
//   owner -> links   LinkDrop{rank}              closes the link, as a network failure would; for
//                                                tests
//   owner -> links   LinkClose{}                 closes everything and ends the actor
//   links -> owner   LinkUp{rank}                the link is up: one side has accepted the other's
//                                                hello
//   links -> owner   LinkMessage{rank, bytes}    exactly once each, in order, while the link is up
//   links -> owner   LinkDown{rank, cause, why}  no message of this peer follows before the next
//                                                LinkUp
//   links -> owner   LinkRefused{what}           a connection was refused; in a burst only the
//                                                first few are reported
//
// The owner must release a message's bytes once it has handled the message. Over TCP, bytes count
// against unread_bytes_max until the last reference is dropped. Above that limit, the links actor
// stops reading from the peer. In-memory links count bytes against the sender's unsent_bytes_max.
//
// If messages to a peer are dropped because it cannot be reached, the owner gets a LinkDown.
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
  SharedBytes shared = nullptr;  // follows `bytes` in the same message; may be null. One copy serves many ranks
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
// kForbidden: a side does not know the secret, or no secret is set and an address is not loopback.
// kOtherWorld: the peer was given other addresses or another job id.
// kLeft: the peer leaves the world.
// kGaveUp: this process was stopped for too long, so the peer closed the link.
enum class LinkDownCause { kClosed = 1, kSilent, kUnreachable, kProtocol, kOverflow, kForbidden, kGaveUp, kLeft, kOtherWorld };
struct LinkDown {
  int rank = 0;
  LinkDownCause cause = LinkDownCause::kClosed;
  std::string why;
};
struct LinkRefused {
  const char* what = "";  // must never be freed
};

class LinksFactory {
 public:
  virtual ~LinksFactory() = default;
  // Spawns the links actor of `rank`. The actor ends when its owner does. Called again when the
  // actor or its owner has died. Calls for different ranks are thread-safe.
  virtual caf::actor spawn(caf::actor_system& system, int rank, const RuntimeOptions& options, const caf::actor& owner) = 0;
};

// Makes in-memory queues between the ranks of one process. One factory serves one world.
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
