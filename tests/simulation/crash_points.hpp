// Simulates a power loss at each disk operation (0, 1, 2, …) of a save. The save either overwrites
// a checkpoint or is the first one. The ranks run with planners, writers and the protocol. The disk
// keeps none, all or some of the unsynced data.
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
  bool overwrites = true;  // a checkpoint exists before the save
};
std::string to_string(const CrashPoint& point);

struct CrashOutcome {
  bool reached = false;  // false: the save has fewer operations
  bool is_new = false;   // the new checkpoint is the current one afterwards
  std::vector<std::string> violations;
};
CrashOutcome lose_power_at(const CrashPoint& point, Coverage& coverage, bool tracing = false);

// Visits every crash point until `visit` returns false. Returns the number of points reached.
std::uint64_t visit_crash_points(Coverage& coverage, const std::function<bool(const CrashPoint&, const CrashOutcome&)>& visit);

}  // namespace cairn::simulation
