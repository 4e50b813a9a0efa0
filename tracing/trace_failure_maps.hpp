// The failure maps that ranks were told. Internal.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include <cairn/tracing/trace_directory.hpp>

namespace cairn {

using EventsByRank = std::map<int, const ObservedEvent*>;  // by the failing rank

// The map that most ranks were told: others have it who ended alone, as those do who were cut off or stood still. `others`: they.
std::optional<EventsByRank> common_map(const Trace& trace, std::vector<int>& others);

}  // namespace cairn
