// Hooks of planners and storage in the trace of one rank, each by what is known of it last.
#pragma once

#include <vector>

#include <cairn/tracing/trace_directory.hpp>

namespace cairn {

// Of each hook among `events` of one rank its end (kOperation), in order; then, of those without an end, their beginning (kBegan), in order.
std::vector<const ObservedEvent*> hook_events(const std::vector<ObservedEvent>& events);

}  // namespace cairn
