// Power loss at every operation of the disk in a save over an existing checkpoint, or of the first one, by ranks with planners,
// writers and protocol: operation 0, 1, 2, … of each, with nothing, all or some of what was not synced kept.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <cairn/tests/simulation/world.hpp>

namespace cairn::simulation {

struct CrashPoint {
  std::uint64_t operation = 0;
  Survival survival;
  int ranks = 1;
  bool overwrites = true;  // there is a checkpoint already
};
std::string to_string(const CrashPoint& point);

struct CrashOutcome {
  bool reached = false;  // false: the save has fewer operations
  bool is_new = false;   // which checkpoint is there afterwards
  std::vector<std::string> violations;
};
CrashOutcome lose_power_at(const CrashPoint& point, Coverage& coverage, bool tracing = false);

// Visits all of them until `visit` returns false. Returns how many there were.
std::uint64_t visit_crash_points(Coverage& coverage, const std::function<bool(const CrashPoint&, const CrashOutcome&)>& visit);

}  // namespace cairn::simulation
