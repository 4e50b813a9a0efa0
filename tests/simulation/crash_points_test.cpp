// Saves are atomic under power loss at any disk operation. tests/storage checks the same for the
// store alone.
#include <cairn/tests/support/torch.hpp>
// torch first
#include <cairn/tests/simulation/crash_points.hpp>
#include <cairn/tests/support/stride.hpp>

namespace cairn::simulation {
namespace {

TEST_CASE("a power loss at any operation leaves the old or the new checkpoint whole") {
  Coverage coverage;
  std::uint64_t old_ones = 0, new_ones = 0;
  const std::uint64_t points = visit_crash_points(coverage, [&](const CrashPoint& point, const CrashOutcome& outcome) {
    INFO(to_string(point));
    for (const auto& violation : outcome.violations) FAIL_CHECK(violation);
    if (!outcome.reached) CHECK(point.operation > 15);  // the save has completed
    ++(outcome.is_new ? new_ones : old_ones);
    return true;
  });
  CHECK(old_ones > 100 / testing::kStride);
  CHECK(new_ones > 50 / testing::kStride);
  MESSAGE(points, " crash points: ", old_ones, " times the old checkpoint, ", new_ones, " times the new one");
}

}  // namespace
}  // namespace cairn::simulation
