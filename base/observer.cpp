#include <cairn/base/observer.hpp>

namespace cairn {

const char* to_string(Actor actor) noexcept {
  switch (actor) {
    case Actor::kRuntime:
      return "runtime";
    case Actor::kSupervisor:
      return "supervisor";
    case Actor::kCoordinator:
      return "coordinator";
    case Actor::kPlanner:
      return "planner";
    case Actor::kStorage:
      return "storage";
    case Actor::kStore:
      return "store";
  }
  return "unknown actor";
}

const char* to_string(LinkChange change) noexcept {
  switch (change) {
    case LinkChange::kUp:
      return "LinkUp";
    case LinkChange::kDown:
      return "LinkDown";
    case LinkChange::kLeft:
      return "LinkDown, as the rank leaves";
  }
  return "unknown change";
}

}  // namespace cairn
