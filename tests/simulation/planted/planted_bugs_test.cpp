// The simulator must find each of the bugs that plant_bugs.py has planted in copies of the shipping sources.
#include <cairn/tests/support/torch.hpp>
// torch first
#include <iterator>

#include <cairn/tests/simulation/crash_points.hpp>
#include <cairn/tests/simulation/options.hpp>
#include <planted_bugs.hpp>

namespace cairn::simulation {
namespace {

// Where something was found, and what; "" if nowhere.
std::string finding() {
  Coverage coverage;
  for (std::uint64_t seed = options().first_seed; seed <= options().last_seed; ++seed) {
    World world(seed, coverage);
    world.run_seed();
    if (!world.violations().empty()) return "seed " + std::to_string(seed) + ": " + world.violations().front();
  }
  std::string found;
  visit_crash_points(coverage, [&](const CrashPoint& point, const CrashOutcome& outcome) {
    if (!outcome.violations.empty()) found = to_string(point) + ": " + outcome.violations.front();
    return found.empty();
  });
  return found;
}

TEST_CASE("each planted bug is found") {
  for (std::size_t number = 0; number < std::size(planted::kBugs); ++number) {
    const planted::Bug& bug = planted::kBugs[number];
    CAPTURE(std::string(bug.name));
    CHECK_MESSAGE(bug.is_planted, "plant_bugs.py does not find its place in the sources");
    if (!bug.is_planted) continue;
    planted::active() = static_cast<int>(number);
    const std::string found = finding();
    planted::active() = -1;
    CHECK_MESSAGE(!found.empty(), "neither a seed nor a crash point finds it");
    MESSAGE(bug.name, ": ", found.substr(0, 250));
  }
}

}  // namespace
}  // namespace cairn::simulation
