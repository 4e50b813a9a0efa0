// Finds the chain of events that caused an event, across ranks and back to the trainer's call. A
// handler acts as soon as the last message that it needs arrives. The chain that led to the end of
// a save is therefore also the critical path of the save.
#pragma once

#include <string>
#include <vector>

#include <cairn/tracing/trace_directory.hpp>
#include <cairn/tracing/trace_messages.hpp>

namespace cairn {

struct ChainLink {
  const ObservedEvent* event = nullptr;  // in the trace
  // True: no event caused the next link; a deadline or the end of a connection caused it. `event`
  // is then the last state change before the next link.
  bool waited = false;
};

// Returns the direct cause of `event`. If a deadline or the end of a connection caused `event`,
// returns the last state change before it on the same rank (for an event of the coordinator, the
// coordinator's last one). The link's event is null if `event` is the trainer's call, or if the
// traces do not contain the cause or state change.
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
// Returns the causal chain of `event` as steps. The steps begin at the time of the attempt's first
// call on any rank. Adjacent steps with the same `rank` and `what` are joined. Steps without a
// positive duration are left out.
std::vector<PathStep> critical_path(const Trace& trace, const TraceClocks& clocks, const ObservedEvent& event);

// Returns the outcome on `rank`, or by default on the rank where the call ended last. Returns null
// if the traces contain no such outcome.
const ObservedEvent* last_outcome(const Trace& trace, const TraceClocks& clocks, std::optional<int> rank = std::nullopt);

}  // namespace cairn
