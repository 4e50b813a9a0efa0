#include <cairn/tests/simulation/crash_points.hpp>

#include <cairn/tests/support/stride.hpp>

namespace cairn::simulation {
namespace {

constexpr std::uint64_t kOperationsMax = 300;  // upper bound for one save

CallSpec next_save(World& world) {
  CallSpec call;
  call.version = {++world.last_content, 0};
  return call;
}

std::vector<Survival> survivals() {
  std::vector<Survival> all{{Survival::kSynced, 0}, {Survival::kEverything, 0}};
  for (std::uint64_t seed = 1; seed <= 2; ++seed) all.push_back({Survival::kRandom, seed});
  for (std::uint64_t seed = 1; seed <= 4; ++seed) all.push_back({Survival::kAny, seed});
  return all;
}

}  // namespace

std::string to_string(const CrashPoint& point) {
  static constexpr const char* kNames[] = {"nothing", "everything", "a part", "any part"};
  return "power lost at operation " + std::to_string(point.operation) + " of a save by " + std::to_string(point.ranks) + " ranks" +
         (point.overwrites ? " over another" : "") + ", kept of what was not synced: " + kNames[point.survival.kind] + " (" +
         std::to_string(point.survival.seed) + ")";
}

CrashOutcome lose_power_at(const CrashPoint& point, Coverage& coverage, bool tracing) {
  World world(static_cast<std::uint64_t>(point.ranks) + 100 * point.survival.seed, coverage);
  world.tracing = tracing;
  const CallSpec old_save = next_save(world);
  if (point.overwrites) {
    JobSpec before;
    before.size = point.ranks;
    before.program = {old_save};
    world.run(before);
    world.files.settle();
  }
  const CallSpec new_save = next_save(world);
  JobSpec job;
  job.size = point.ranks;
  job.program = {new_save};
  job.quiet = false;
  Trouble loss;
  loss.what = Trouble::What::kPowerLoss;
  loss.when = Trouble::When::kOperation;
  loss.operation = point.operation;
  loss.survival = point.survival;
  job.troubles = {loss};
  world.run(job);

  CrashOutcome outcome;
  outcome.reached = world.job(point.overwrites ? 1 : 0).operations() > point.operation;
  const auto current = world.ledger.current(new_save.place);
  const auto version = current ? world.ledger.version_of(*current) : std::nullopt;
  outcome.is_new = version && version->content == new_save.version.content;
  const bool is_old = point.overwrites ? version && version->content == old_save.version.content : !current;
  if (!outcome.is_new && !is_old) world.ledger.accuse("there is neither the old checkpoint nor the new one");
  if (!outcome.reached && !outcome.is_new) world.ledger.accuse("a save in which nothing happened is not there");
  world.check_end(1 + static_cast<int>(point.operation % 3));
  outcome.violations = world.violations();
  return outcome;
}

std::uint64_t visit_crash_points(Coverage& coverage, const std::function<bool(const CrashPoint&, const CrashOutcome&)>& visit) {
  std::uint64_t points = 0;
  for (const auto& [overwrites, ranks] : {std::pair(true, 1), std::pair(true, 3), std::pair(false, 2)}) {
    for (const Survival& survival : survivals()) {
      for (CrashPoint point{0, survival, ranks, overwrites}; point.operation < kOperationsMax;
           point.operation += testing::kStride) {
        const CrashOutcome outcome = lose_power_at(point, coverage);
        if (!visit(point, outcome)) return points;
        if (!outcome.reached) break;
        ++points;
      }
    }
  }
  return points;
}

}  // namespace cairn::simulation
