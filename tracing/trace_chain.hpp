// Follows causes from rank to rank: the events that led to an event, back to the trainer's call. A
// handler acts on the last message that it needs, so the chain that led to the end of a save is
// also its critical path.
#pragma once

#include <string>
#include <vector>

#include <cairn/tracing/trace_directory.hpp>
#include <cairn/tracing/trace_messages.hpp>

namespace cairn {

struct ChainLink {
  const ObservedEvent* event = nullptr;  // in the trace
  // True: a deadline or the end of a connection caused the next link, not an event. `event` is then
  // the last state change before the next link.
  bool waited = false;
};

// Returns the direct cause of `event`. If no event caused it, returns the last state change before
// `event` of the same state machine. The link's event is null if the traces contain neither.
ChainLink cause_of(const Trace& trace, const ObservedEvent& event);

// Returns the chain from the earliest known cause to `event` itself.
std::vector<ChainLink> causal_chain(const Trace& trace, const ObservedEvent& event);

// A step of the critical path, and its duration.
struct PathStep {
  int rank = 0;
  std::string what;  // "write_data", "coordinated"
  WallTime begin;
  Duration duration{0};
  int sender = -1;  // if the step is a message on its way to `rank`: its sender; otherwise -1
};
// Returns the chain from the attempt's first call to `event` as steps. Adjacent links of one kind
// form one step; steps without duration are left out.
std::vector<PathStep> critical_path(const Trace& trace, const TraceClocks& clocks, const ObservedEvent& event);

// Returns the outcome on `rank`, or by default on the rank where the call ended last. Null if the
// traces contain none.
const ObservedEvent* last_outcome(const Trace& trace, const TraceClocks& clocks, std::optional<int> rank = std::nullopt);

}  // namespace cairn
