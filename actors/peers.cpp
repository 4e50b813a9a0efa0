#include <cairn/actors/peers.hpp>

#include <new>
#include <utility>

#include <caf/send.hpp>

#include <cairn/actors/call_events.hpp>
#include <cairn/actors/links/exit_reason.hpp>

namespace cairn {
namespace {

protocol::PeerDown peer_down_of(const LinkDown& down) {
  protocol::PeerDown event;
  event.rank = down.rank;
  event.why = down.why;
  event.unopened = down.cause == LinkDownCause::kForbidden || down.cause == LinkDownCause::kUnreachable ||
                   down.cause == LinkDownCause::kOtherWorld;
  event.gave_up = down.cause == LinkDownCause::kGaveUp;
  if (down.cause == LinkDownCause::kSilent) {
    event.kind = FailureKind::kSilent;
    event.code = ErrorCode::kDeadline;
  }
  if (down.cause == LinkDownCause::kProtocol) event.code = ErrorCode::kCorrupt;
  if (down.cause == LinkDownCause::kForbidden) event.code = ErrorCode::kPermission;
  if (down.cause == LinkDownCause::kOtherWorld) event.code = ErrorCode::kMismatch;
  return event;
}

// For the call of one message the other rank counts as unreachable.
protocol::PeerDown unsent(int to, bool reachable, ErrorCode code, std::string why) {
  protocol::PeerDown down;
  down.rank = to;
  down.reachable = reachable;
  down.unopened = !reachable;
  down.code = code;
  down.why = std::move(why);
  return down;
}

}  // namespace

void Peers::meet_faults(FaultSite site, const protocol::Message& message) const {
  if (!config_.injector) return;
  for (const auto& rule : config_.injector->pass(site, protocol::name_of(message), config_.rank))
    if (rule.action == FaultAction::kDropLink) drop(LinkDrop{rule.peer.value_or(-1)});
}

void Peers::drop(const LinkDrop& drop) const {
  if (links) caf::anon_send(links, drop);
}

std::optional<protocol::PeerDown> Peers::send(const std::string& checkpointer, const protocol::Send& message) {
  if (!links)
    return unsent(message.to, false, ErrorCode::kInternal,
                  "the links actor of rank " + std::to_string(config_.rank) + " died too often");
  protocol::Envelope envelope;
  envelope.attempt = {config_.incarnation, checkpointer, message.counter};
  envelope.sender = config_.rank;
  envelope.cause = tap_.cause();
  envelope.body = message.body;
  ObservedEvent event = call_event(EventKind::kSent, {}, checkpointer, message.counter);
  event.peer = message.to;
  if (describe(message.body, event)) envelope.id = tap_.record(event);
  try {
    auto encoded = encoder_.encode(envelope);
    auto own = std::make_shared<const std::string>(std::move(encoded.own));
    caf::anon_send(links, LinkSend{message.to, std::move(own), std::move(encoded.shared)});
  } catch (const Error& error) {
    return unsent(message.to, true, error.code(),
                  std::string(protocol::name_of(message.body)) + " cannot be sent: " + error.what());
  }
  return std::nullopt;
}

std::variant<protocol::Envelope, protocol::PeerDown> Peers::read(const LinkMessage& message) {
  std::string fault;
  bool has_memory = true;
  try {
    protocol::Envelope envelope = decoder_.decode(*message.bytes);
    if (envelope.sender == message.rank) return envelope;
    fault = "its envelope names rank " + std::to_string(envelope.sender) + " as its sender";
  } catch (const std::bad_alloc& error) {
    has_memory = false;
    fault = error.what();
  } catch (const std::exception& error) {
    fault = error.what();
  }
  tap_.record(EventKind::kHandled, "undecodable message", 0, false, message.rank, message.bytes->size());
  protocol::PeerDown down;
  down.rank = message.rank;
  down.reachable = true;
  down.code = has_memory ? ErrorCode::kCorrupt : ErrorCode::kUnavailable;
  down.why = has_memory ? "it sent a message that cannot be read: " + fault
                        : "rank " + std::to_string(config_.rank) + " had no memory to read its message: " + fault;
  return down;
}

ObservedEvent Peers::event_of(const LinkMessage& message, const protocol::Envelope& envelope) const {
  const protocol::Attempt& attempt = envelope.attempt;
  ObservedEvent event = call_event(EventKind::kHandled, {}, attempt.checkpointer, attempt.counter);
  if (!describe(envelope.body, event)) return {};
  event.peer = message.rank;
  event.bytes = message.bytes->size();
  event.cause = envelope.id;
  return event;
}

void Peers::record_end(const protocol::Attempt& attempt) {
  std::exception_ptr exception = std::current_exception();
  const std::string text = describe_exit(exit_reason_of(exception));
  ObservedEvent event = call_event(EventKind::kOperation, {}, attempt.checkpointer, attempt.counter, false);
  event.name = "handler";
  event.text = text;
  tap_.record(event);
}

protocol::PeerUp Peers::take(const LinkUp& up) {
  ObservedEvent event = call_event(EventKind::kHandled, LinkChange::kUp, "", 0);
  event.peer = up.rank;
  tap_.record(event);
  return {up.rank};
}

protocol::PeerDown Peers::take(const LinkDown& down) {
  protocol::PeerDown news = peer_down_of(down);
  const LinkChange change = down.cause == LinkDownCause::kLeft ? LinkChange::kLeft : LinkChange::kDown;
  ObservedEvent event = call_event(EventKind::kHandled, change, "", 0, false);
  event.peer = down.rank;
  event.text = news.why;
  tap_.set_cause(tap_.record(event));
  return news;
}

void Peers::ignore(const char* why, int peer) {
  ObservedEvent event = call_event(EventKind::kState, Ignored::kInput, "", 0, false);
  event.name = why;
  event.peer = peer;
  tap_.record(event);
}

}  // namespace cairn
