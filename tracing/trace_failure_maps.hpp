// The failure maps that ranks received. Internal.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include <cairn/tracing/trace_directory.hpp>

namespace cairn {

using EventsByRank = std::map<int, const ObservedEvent*>;  // by the failing rank

// Returns the map that most ranks received; nothing if no rank received one. Adds to `others` the
// ranks that received another map, such as those that were cut off or frozen.
std::optional<EventsByRank> common_map(const Trace& trace, std::vector<int>& others);

}  // namespace cairn
