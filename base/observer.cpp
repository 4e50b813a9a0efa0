#include <cairn/base/observer.hpp>

#include <cairn/base/enum_names.hpp>

namespace cairn {

const char* to_string(Actor actor) noexcept {
  static constexpr const char* kNames[] = {"runtime", "supervisor", "coordinator", "planner", "storage", "store", "links"};
  return name_in<Actor::kLinks>(kNames, actor, "unknown actor");
}

const char* to_string(LinkChange change) noexcept {
  static constexpr const char* kNames[] = {"LinkUp", "LinkDown", "LinkDown, as the rank leaves"};
  return name_in<LinkChange::kLeft>(kNames, change, "unknown change");
}

}  // namespace cairn
