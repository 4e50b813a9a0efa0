// The states of each rank and of the coordinator over time, the phases and waits that follow from
// these states, and the failure maps that ranks received. Internal.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include <cairn/tracing/trace_directory.hpp>
#include <cairn/tracing/trace_findings.hpp>

namespace cairn {

template <class State>  // RankState or CoordinatorState
struct TracedState {
  State state = State::kIdle;
  WallTime begin;
  std::optional<WallTime> end;           // nothing: it is the last state in the trace
  const ObservedEvent* entry = nullptr;  // the change to this state
};

// Returns the states of one kind of machine on a rank, up to the first idle state that follows
// another state.
template <class State>
std::vector<TracedState<State>> states_of(const Trace& trace, const TraceClocks& clocks, int rank) {
  std::vector<TracedState<State>> states;
  const auto found = trace.events.find(rank);
  if (found == trace.events.end()) return states;
  for (const auto& event : found->second) {
    const State* const state = event.as<State>();
    if (state == nullptr) continue;
    const WallTime time = clocks.at(event);
    if (!states.empty()) states.back().end = time;
    if (*state == State::kIdle) {
      // The first one may be the start of the trace, or the end of the call before.
      if (states.empty()) continue;
      break;
    }
    states.push_back({*state, time, std::nullopt, &event});
  }
  return states;
}

// Returns the rank whose trace has the coordinator's states; -1 if unknown.
int coordinator_of(const Trace& trace);

// Returns the last phase that a rank's own trace shows, or nothing if unknown. For the coordinator,
// returns the last phase of the save or load.
std::optional<Phase> own_phase_of(const Trace& trace, const TraceClocks& clocks, int rank);

std::vector<TracedPhase> phases_of(const Trace& trace, const TraceClocks& clocks, int coordinator);

// Returns whether a rank ends its part in a phase with a message of this kind.
bool ends_part(MessageKind kind);

// Returns the longest time that the coordinator waited for the last ranks' answers in a phase.
std::optional<TracedWait> longest_wait(const Trace& trace, const TraceClocks& clocks, int coordinator);

using EventsByRank = std::map<int, const ObservedEvent*>;  // by the failing rank

// Returns the map that most ranks received; nothing if no rank received one. Adds to `others` the
// ranks that received another map, such as those that were cut off or frozen.
std::optional<EventsByRank> common_map(const Trace& trace, std::vector<int>& others);

}  // namespace cairn
