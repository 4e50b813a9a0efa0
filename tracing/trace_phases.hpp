// The states of each rank and of the coordinator over time. Phases and waits are computed from
// them. Internal.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/tracing/trace_diagnosis.hpp>

namespace cairn {

struct TracedState {
  std::string_view name;  // without the prefix: "moving"
  WallTime begin;
  std::optional<WallTime> end;           // nothing: it is the last state in the trace
  const ObservedEvent* entry = nullptr;  // the change to this state
};

// Returns the states of a rank. `prefix` is trace_names::kRankState or kCoordinatorState. The
// states end at the first "idle" that follows another state.
std::vector<TracedState> states_of(const Trace& trace, const TraceClocks& clocks, int rank, std::string_view prefix);

// Returns the rank whose trace has the coordinator's states; -1 if unknown.
int coordinator_of(const Trace& trace);

// Returns the last phase that a rank's own trace shows; for the coordinator, the last phase of the
// save or load. Returns "" if unknown.
std::string own_phase_of(const Trace& trace, const TraceClocks& clocks, int rank);

std::vector<TracedPhase> phases_of(const Trace& trace, const TraceClocks& clocks, int coordinator);

// Returns the longest time that the coordinator waited for the last ranks' answers in a phase.
std::optional<TracedWait> longest_wait(const Trace& trace, const TraceClocks& clocks, int coordinator);

}  // namespace cairn
