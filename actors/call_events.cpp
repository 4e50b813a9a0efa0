#include <cairn/actors/call_events.hpp>

#include <cairn/base/save_id.hpp>

namespace cairn {

ObservedEvent call_event(EventKind kind, std::string_view name, const std::string& checkpointer, std::uint64_t counter, bool ok) {
  ObservedEvent event;
  event.kind = kind;
  event.name = name;
  event.checkpointer = checkpointer_key(checkpointer);
  event.attempt = counter;
  event.ok = ok;
  return event;
}

std::uint64_t record_state(Tap& tap, const What& what, const std::string& checkpointer, std::uint64_t counter) {
  ObservedEvent event = call_event(EventKind::kState, {}, checkpointer, counter);
  event.what = what;
  return tap.record(event);
}

void record_effect(Tap& tap, const protocol::StateChanged& changed, const std::string& checkpointer, std::uint64_t counter) {
  std::visit([&](auto to) { record_state(tap, to, checkpointer, counter); }, changed.to);
}

void record_effect(Tap& tap, const protocol::InputIgnored& ignored, const std::string& checkpointer, std::uint64_t counter) {
  ObservedEvent event = call_event(EventKind::kState, ignored.why, checkpointer, counter, false);
  event.what = ignored.what;
  tap.record(event);
}

void record_outcome(Tap& tap, int rank, const std::string& checkpointer, std::uint64_t counter, const Outcome& outcome) {
  for (const auto& [whose, failure] : outcome.failures) {
    ObservedEvent event = call_event(EventKind::kFailure, to_string(failure.kind), checkpointer, counter, false);
    event.peer = whose == rank ? -1 : whose;
    event.phase = failure.phase;
    event.detail = to_string(failure.code);
    event.number = failure.trace_position;
    const std::string text = failure.type.empty() ? failure.what : failure.type + ": " + failure.what;
    event.text = text;
    tap.record(event);
  }
  ObservedEvent event = call_event(EventKind::kOutcome, "outcome", checkpointer, counter, outcome.ok());
  event.detail = to_string(outcome.committed);
  event.text = outcome.save_id;
  tap.record(event);
}

}  // namespace cairn
