// The trace events that a rank's actors record about one call.
#pragma once

#include <cstdint>
#include <string>

#include <cairn/actors/call_context.hpp>
#include <cairn/actors/protocol/events.hpp>
#include <cairn/actors/timer_queue.hpp>
#include <cairn/actors/traced.hpp>
#include <cairn/base/observer.hpp>

namespace cairn {

// An event about no call has no checkpointer ("") and the counter 0.
ObservedEvent call_event(EventKind kind, const What& what, const std::string& checkpointer, std::uint64_t counter, bool ok = true);

// Records a kState event and returns the event's id.
std::uint64_t record_state(Tap& tap, const What& what, const std::string& checkpointer, std::uint64_t counter);
// Performs an effect that concerns only the actor of the machine: a timer or a trace event.
void perform_own(const protocol::Effect& effect, Tap& tap, TimerQueue& timers, TimerQueue::Time now,
                 const std::string& checkpointer, std::uint64_t counter);

// Records the stacks of at most kStacksMax threads that have been in one hook or store operation of
// the call for at least `running_min`. Never records the same hook or operation twice.
void record_stacks(Tap& tap, const CallContext& context, std::uint64_t counter, Duration running_min);

// Records each entry of the call's failure map. Then records how the call ended on this rank.
void record_outcome(Tap& tap, int rank, const std::string& checkpointer, std::uint64_t counter, const CallResult& outcome);

}  // namespace cairn
