// The other ranks of a supervisor's world: encodes the messages to them, decodes the messages from
// them, and records both in the trace.
#pragma once

#include <optional>
#include <string>
#include <variant>

#include <caf/actor.hpp>

#include <cairn/actors/links/links.hpp>
#include <cairn/actors/protocol/events.hpp>
#include <cairn/actors/rank_config.hpp>
#include <cairn/actors/traced.hpp>
#include <cairn/messages/codec.hpp>

namespace cairn {

class Peers {
 public:
  // `tap` belongs to the supervisor, and must live as long as this object.
  Peers(const RankConfig& config, Tap& tap) : config_(config), tap_(tap) {}

  caf::actor links;  // null: they died too often, or there is no other rank

  // Injects the faults of this site. Messages of a rank to itself pass here too, so that a site
  // means the same on every rank.
  void meet_faults(FaultSite site, const protocol::Message& message) const;

  void drop(const LinkDrop& drop) const;

  // Gives a message to the links. If that is impossible, returns the loss of the receiver that it
  // counts as.
  std::optional<protocol::PeerDown> send(const std::string& checkpointer, const protocol::Send& message);

  // Decodes a message. Returns the loss of its sender if that is impossible.
  std::variant<protocol::Envelope, protocol::PeerDown> read(const LinkMessage& message);
  // Records that a decoded message is handled, and calls `handler`. Also records an exception of
  // `handler`, which is about to end the actor.
  template <class Handler>
  void handle(const LinkMessage& message, const protocol::Envelope& envelope, const Handler& handler) {
    tap_.handle_from(event_of(message, envelope), [&] {
      try {
        handler();
      } catch (const std::exception&) {
        record_end(envelope.attempt);
        throw;
      }
    });
  }

  protocol::PeerUp take(const LinkUp& up);
  // Leaves the event as the cause of what follows; the caller resets it (`Tap::set_cause`).
  protocol::PeerDown take(const LinkDown& down);
  void ignore(const char* why, int peer = -1);

 private:
  ObservedEvent event_of(const LinkMessage& message, const protocol::Envelope& envelope) const;
  void record_end(const protocol::Attempt& attempt);

  const RankConfig& config_;
  Tap& tap_;
  protocol::EnvelopeEncoder encoder_;
  protocol::EnvelopeDecoder decoder_;
};

}  // namespace cairn
