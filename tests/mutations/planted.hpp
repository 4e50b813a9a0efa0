// Switches planted bugs on, in the copy of the sources that run.py compiles.
#pragma once

#include <cstdlib>
#include <cstring>

namespace cairn::planted {

// Returns whether the environment variable CAIRN_PLANT names this plant.
inline bool is_on(const char* id) noexcept {
  static const char* const active = std::getenv("CAIRN_PLANT");
  return active != nullptr && std::strcmp(active, id) == 0;
}

}  // namespace cairn::planted
