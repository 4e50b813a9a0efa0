#include <cairn/actors/call_events.hpp>

#include <cairn/base/running_work.hpp>
#include <cairn/base/save_id.hpp>

namespace cairn {

ObservedEvent call_event(EventKind kind, const What& what, const std::string& checkpointer, std::uint64_t counter, bool ok) {
  ObservedEvent event;
  event.kind = kind;
  event.what = what;
  event.checkpointer = checkpointer_key(checkpointer);
  event.attempt = counter;
  event.ok = ok;
  return event;
}

std::uint64_t record_state(Tap& tap, const What& what, const std::string& checkpointer, std::uint64_t counter) {
  return tap.record(call_event(EventKind::kState, what, checkpointer, counter));
}

void perform_own(const protocol::Effect& effect, Tap& tap, TimerQueue& timers, TimerQueue::Time now,
                 const std::string& checkpointer, std::uint64_t counter) {
  if (const auto* start = std::get_if<protocol::StartTimer>(&effect)) {
    timers.start({checkpointer, start->timer}, now, start->after);
  } else if (const auto* stop = std::get_if<protocol::StopTimer>(&effect)) {
    timers.stop({checkpointer, stop->timer});
  } else if (const auto* changed = std::get_if<protocol::StateChanged>(&effect)) {
    std::visit([&](auto to) { record_state(tap, to, checkpointer, counter); }, changed->to);
  } else if (const auto* ignored = std::get_if<protocol::InputIgnored>(&effect)) {
    ObservedEvent event = call_event(EventKind::kState, ignored->what, checkpointer, counter, false);
    event.name = ignored->why;
    tap.record(event);
  }
}

void record_stacks(Tap& tap, const CallContext& context, std::uint64_t counter, Duration running_min) {
  const std::string& checkpointer = context.call().id.checkpointer;
  for (const ThreadStack& stack : take_stacks(&context, running_min)) {
    ObservedEvent event = call_event(EventKind::kStack, {}, checkpointer, counter, stack.fault.empty());
    event.name = stack.work.name;
    event.phase = stack.work.phase;
    event.duration = stack.running;
    const std::string text =
        stack.object.empty() || stack.fault.empty() ? stack.object + stack.fault : stack.object + ": " + stack.fault;
    event.text = text;
    const std::uint64_t id = tap.record_as(stack.work.actor, event);
    for (const StackFrame& frame : stack.frames) {
      ObservedEvent of_frame = call_event(EventKind::kFrame, {}, checkpointer, counter);
      of_frame.name = frame.module;
      of_frame.number = frame.offset;
      of_frame.cause = id;
      tap.record_as(stack.work.actor, of_frame);
    }
  }
}

void record_outcome(Tap& tap, int rank, const std::string& checkpointer, std::uint64_t counter, const CallResult& outcome) {
  for (const auto& [whose, failure] : outcome.failures) {
    ObservedEvent event = call_event(EventKind::kFailure, failure.kind, checkpointer, counter, false);
    event.peer = whose == rank ? -1 : whose;
    event.phase = failure.phase;
    event.code = failure.code;
    event.number = failure.trace_position;
    const std::string text = failure.type.empty() ? failure.what : failure.type + ": " + failure.what;
    event.text = text;
    tap.record(event);
  }
  ObservedEvent event = call_event(EventKind::kOutcome, outcome.committed, checkpointer, counter, outcome.ok());
  event.text = outcome.save_id;
  tap.record(event);
}

}  // namespace cairn
