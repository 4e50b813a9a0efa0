#include <cairn/tracing/trace_hooks.hpp>

#include <cstdint>
#include <map>

namespace cairn {

std::vector<const ObservedEvent*> hook_events(const std::vector<ObservedEvent>& events) {
  std::vector<const ObservedEvent*> hooks;
  std::map<std::uint64_t, const ObservedEvent*> open;  // ids are ascending
  for (const auto& event : events) {
    if (event.kind == EventKind::kBegan) open[event.id] = &event;
    if (event.kind != EventKind::kOperation) continue;
    // The end of a hook has its beginning as cause.
    open.erase(event.cause);
    hooks.push_back(&event);
  }
  for (const auto& [id, event] : open) hooks.push_back(event);
  return hooks;
}

}  // namespace cairn
