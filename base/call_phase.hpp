// Maps the states of the rank and coordinator machines to the phases of a call. Failure maps,
// progress, metrics, listeners and traces all use this mapping, so they name the same phase.
#pragma once

#include <optional>

#include <cairn/base/call_state.hpp>
#include <cairn/base/failure.hpp>

namespace cairn {

// Returns the phase that a rank is in, or nothing before the first phase and after the last one. A
// rank that has done its part waits for the others in the same phase.
std::optional<Phase> phase_of(RankState state, Operation operation) noexcept;
// Returns the phase that the whole call is in, or nothing for kIdle. An agreement is decided in the
// phase kGlobalPlan.
std::optional<Phase> phase_of(CoordinatorState state, Operation operation) noexcept;
// Returns whether a rank in this state has done its part of the phase.
bool is_waiting(RankState state) noexcept;

}  // namespace cairn
