// The phases of a call, as the states of its machines tell them: the same in failure maps,
// progress, metrics, listeners and traces.
#pragma once

#include <optional>

#include <cairn/base/call_state.hpp>
#include <cairn/base/failure.hpp>

namespace cairn {

// Returns the phase that a rank is in; nothing before and after the phases. A rank that has done
// its part waits for the others in the same phase.
std::optional<Phase> phase_of(RankState state, Operation operation) noexcept;
// Returns the phase that the whole call is in; nothing for kIdle. Agreements are decided in
// kGlobalPlan.
std::optional<Phase> phase_of(CoordinatorState state, Operation operation) noexcept;
// Returns whether a rank in this state has done its part of the phase.
bool is_waiting(RankState state) noexcept;

}  // namespace cairn
