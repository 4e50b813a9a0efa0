// The simulator must find each bug that plant_bugs.py plants in copies of the shipping sources,
// either by a seed or by a power loss at some operation of a save.
#include <cairn/tests/support/torch.hpp>
// torch first
#include <iostream>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <cairn/tests/simulation/crash_points.hpp>
#include <cairn/tests/simulation/options.hpp>
#include <planted_bugs.hpp>

namespace cairn::simulation {
namespace {

// Bugs that the first seeds do not find are looked for at the crash points, and then by more seeds.
constexpr std::uint64_t kFirstSeeds = 300;
constexpr std::uint64_t kSeedsMax = 10000;
constexpr std::size_t kShownMax = 200;

std::vector<std::string> violations_of(std::uint64_t seed) {
  Coverage coverage;
  World world(seed, coverage);
  world.tracing = options().trace;
  world.run_seed();
  return world.violations();
}

std::optional<std::string> find_by_seeds(std::uint64_t from, std::uint64_t to) {
  for (std::uint64_t seed = from; seed < to; ++seed) {
    const auto violations = violations_of(seed);
    if (violations.empty()) continue;
    // Without the planted bug, the seed must pass: the violation comes from this bug alone.
    const int bug = std::exchange(planted::active(), -1);
    CAPTURE(seed);
    CHECK(violations_of(seed).empty());
    planted::active() = bug;
    return "seed " + std::to_string(seed) + ": " + violations.front();
  }
  return std::nullopt;
}

std::optional<std::string> find_by_crash_points() {
  Coverage coverage;
  std::optional<std::string> found;
  visit_crash_points(coverage, [&](const CrashPoint& point, const CrashOutcome& outcome) {
    if (!outcome.violations.empty()) found = to_string(point) + ": " + outcome.violations.front();
    return !found;
  });
  return found;
}

TEST_CASE("each planted bug is found") {
  std::size_t tried = 0;
  for (std::size_t number = 0; number < std::size(planted::kBugs); ++number) {
    const planted::Bug& bug = planted::kBugs[number];
    const std::string name = bug.name;
    if (name.find(options().bug) == std::string::npos) continue;
    ++tried;
    CAPTURE(name);
    CHECK_MESSAGE(bug.is_planted, "plant_bugs.py does not find its place in the sources");
    if (!bug.is_planted) continue;
    planted::active() = static_cast<int>(number);
    auto found = find_by_seeds(0, kFirstSeeds);
    if (!found) found = find_by_crash_points();
    if (!found) found = find_by_seeds(kFirstSeeds, kSeedsMax);
    planted::active() = -1;
    CHECK_MESSAGE(found.has_value(), "neither a crash point nor a seed below ", kSeedsMax, " finds it");
    if (found) std::cout << name << ": " << found->substr(0, kShownMax) << "\n";
  }
  CHECK(tried > 0);
}

}  // namespace
}  // namespace cairn::simulation
