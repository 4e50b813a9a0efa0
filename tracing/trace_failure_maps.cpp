#include <cairn/tracing/trace_failure_maps.hpp>

#include <algorithm>
#include <string>

#include <cairn/tracing/trace_text.hpp>

namespace cairn {
namespace {

// Returns the failure map that each rank received.
std::map<int, EventsByRank> told_maps(const Trace& trace) {
  std::map<int, EventsByRank> maps;
  for (const auto& [rank, events] : trace.events)
    for (const auto& event : events)
      if (event.kind == EventKind::kFailure) maps[rank].emplace(event.peer < 0 ? rank : event.peer, &event);
  return maps;
}

std::string summary_of(const EventsByRank& map) {
  std::string text;
  for (const auto& [rank, event] : map) text += std::to_string(rank) + " " + name_of(*event) + "\n";
  return text;
}

}  // namespace

std::optional<EventsByRank> common_map(const Trace& trace, std::vector<int>& others) {
  const auto maps = told_maps(trace);
  std::map<std::string, std::vector<int>> ranks;
  // Maps that name the same ranks and kinds count as the same, whatever their texts.
  for (const auto& [rank, map] : maps) ranks[summary_of(map)].push_back(rank);
  const auto most =
      std::max_element(ranks.begin(), ranks.end(), [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  if (most == ranks.end()) return std::nullopt;
  for (const auto& [rank, map] : maps)
    if (summary_of(map) != most->first) others.push_back(rank);
  return maps.at(most->second.front());
}

}  // namespace cairn
