// Maps the states of a call's state machines to its phases, so that failure maps, progress,
// metrics, listeners and traces name the same phase.
#pragma once

#include <optional>

#include <cairn/base/call_state.hpp>
#include <cairn/base/failure.hpp>

namespace cairn {

// Returns the phase that a rank is in; nothing before the first phase and after the last one. A
// rank that has done its part waits for the others in the same phase.
std::optional<Phase> phase_of(RankState state, Operation operation) noexcept;
// Returns the phase that the whole call is in; nothing for kIdle. Agreements are decided in
// kGlobalPlan.
std::optional<Phase> phase_of(CoordinatorState state, Operation operation) noexcept;
// Returns whether a rank in this state has done its part of the phase.
bool is_waiting(RankState state) noexcept;

}  // namespace cairn
