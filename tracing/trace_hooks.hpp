// The hooks of planners and storage in the trace of one rank, each with its latest event.
#pragma once

#include <vector>

#include <cairn/tracing/trace_directory.hpp>

namespace cairn {

// Returns the end (kOperation) of each finished hook among `events` of one rank, in order, then the
// beginning (kBegan) of each unfinished one, in order.
std::vector<const ObservedEvent*> hook_events(const std::vector<ObservedEvent>& events);

}  // namespace cairn
