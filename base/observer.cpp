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

}  // namespace cairn
