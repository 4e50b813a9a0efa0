// When each rank, and the coordinator, was in which state: what phases and waits are computed from. Internal.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/tracing/trace_diagnosis.hpp>

namespace cairn {

struct TracedState {
  std::string_view name;  // without who is in it: "moving"
  WallTime begin;
  std::optional<WallTime> end;  // nothing: it is the last one in the trace
};

// `prefix`: trace_names::kRankState or kCoordinatorState. Of the coordinator, up to its first "idle".
std::vector<TracedState> states_of(const Trace& trace, const TraceClocks& clocks, int rank, std::string_view prefix);

// Whose trace has the coordinator's states; -1: nobody's.
int coordinator_of(const Trace& trace);

// In which phase the trace of a rank has it, and of the coordinator the save or load, in the end; "": that is not to be seen.
std::string own_phase_of(const Trace& trace, const TraceClocks& clocks, int rank);

std::vector<TracedPhase> phases_of(const Trace& trace, const TraceClocks& clocks, int coordinator);

// The longest time for which the coordinator waited for the last ranks' answers in one phase.
std::optional<TracedWait> longest_wait(const Trace& trace, const TraceClocks& clocks, int coordinator);

}  // namespace cairn
