// Causes, from rank to rank: what led to an event, back to the trainer's call. A handler acts on the last of the messages that it needs, so
// the chain that led to the end of a save is also its critical path.
#pragma once

#include <string>
#include <vector>

#include <cairn/tracing/trace_directory.hpp>
#include <cairn/tracing/trace_messages.hpp>

namespace cairn {

struct ChainLink {
  const ObservedEvent* event = nullptr;  // in the trace
  // Nothing led to the next one but time: a deadline, or the end of a connection. This is the last change of state before.
  bool waited = false;
};

// What led to `event` directly, or, where nothing but time did, when its machine had last moved; null where the traces have neither.
ChainLink cause_of(const Trace& trace, const ObservedEvent& event);

// From the earliest cause that the traces hold to `event` itself.
std::vector<ChainLink> causal_chain(const Trace& trace, const ObservedEvent& event);

// "rank 2 wrote: write_data", and how long it took.
struct PathStep {
  int rank = 0;
  std::string what;
  WallTime begin;
  Duration duration{0};
};
// The chain in steps, neighbours of one kind together. From the first call of the attempt to `event`; steps without time are left out.
std::vector<PathStep> critical_path(const Trace& trace, const TraceClocks& clocks, const ObservedEvent& event);

// Of the rank on which the call ended last, or of `rank`. Null if no outcome is in the traces.
const ObservedEvent* last_outcome(const Trace& trace, const TraceClocks& clocks, std::optional<int> rank = std::nullopt);

}  // namespace cairn
