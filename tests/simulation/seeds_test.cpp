// Many worlds, one per seed: whatever befalls them, the ledger finds nothing wrong.
#include <cairn/tests/support/torch.hpp>
// torch first
#include <iostream>

#include <cairn/tests/simulation/options.hpp>
#include <cairn/tests/simulation/world.hpp>

namespace cairn::simulation {
namespace {

constexpr int kFailuresShownMax = 20;

// What some seed must have met: a rare branch that no world takes is one that is not tested.
constexpr const char* kRareBranches[] = {
    "a job after a job",
    "zombie",
    "thawed",
    "all lose power",
    "unsynced data lost",
    "a connection is reset",
    "a link is cut",
    "the network is parted",
    "link silent",
    "link unreachable",
    "shut down",
    "a trainer stops calling",
    "planner actor died",
    "storage actor died",
    "coordinator actor died",
    "killed as coordinator: joining",
    "killed as coordinator: local plans",
    "killed as coordinator: global plan",
    "killed as coordinator: moving",
    "killed as coordinator: finishing",
    "frozen as coordinator: joining",
    "frozen as coordinator: local plans",
    "frozen as coordinator: global plan",
    "frozen as coordinator: moving",
    "frozen as coordinator: finishing",
    "coordinator actor died as coordinator: finishing",
    "killed as rank: joining",
    "killed as rank: preparing",
    "killed as rank: planned",
    "killed as rank: moving",
    "killed as rank: reported",
    "coordinator's deadline",
    "rank's deadline",
    "ended alone",
    "a successor ended the call",
    "several failures in one map",
    "ignored: message of another attempt",
    "ignored: Outcome of another call",
    "ignored: failure of a rank that has done its part",
    "ignored: end of a hook that is not running",
    "sent SameSavePlan",
    "sent UseCachedPlan",
    "sent NeedLocalPlan",
    "sent NeedGlobalPlan",
    "disk failed",
    "disk lost an answer",
    "disk was slow",
    "an attempt was fenced",
    "a fence came before the publication",
    "settled: committed",
    "settled: not committed",
    "save failed, committed yes",
    "save failed, committed no",
    "save failed, committed unknown",
    "load succeeded",
    "trouble in set_up_storage_writer",
    "trouble in write_data",
    "trouble in finish",
    "trouble in read_data",
};

TEST_CASE("whatever befalls the ranks of a job, what was promised holds") {
  Coverage coverage;
  int failing = 0;
  std::uint64_t events = 0;
  std::uint64_t seed = options().first_seed;
  for (; seed <= options().last_seed && failing < kFailuresShownMax; ++seed) {
    World world(seed, coverage);
    world.tracing = options().trace;
    world.run_seed();
    events += world.time.events();
    if (world.violations().empty()) continue;
    ++failing;
    std::string text = "seed " + std::to_string(seed) + ": " + options().program +
                       " -tc=\"whatever befalls*\" --no-coverage --seeds=" + std::to_string(seed) + " --trace";
    for (const auto& violation : world.violations()) text += "\n  " + violation;
    FAIL_CHECK(text);
  }
  std::cout << seed - options().first_seed << " seeds, " << events << " events\n";
  if (!options().coverage) return;
  for (const auto& [what, count] : coverage.counts()) std::cout << "  " << count << "  " << what << "\n";
  for (const std::string branch : kRareBranches) {
    CAPTURE(branch);
    CHECK(coverage[branch] > 0);
  }
}

TEST_CASE("a seed replays exactly") {
  for (const std::uint64_t seed : {3u, 8u, 21u}) {
    Coverage first_coverage, second_coverage;
    World first(seed, first_coverage), second(seed, second_coverage);
    first.run_seed();
    second.run_seed();
    CHECK(first.time.events() == second.time.events());
    CHECK(first.time.now() == second.time.now());
    CHECK(first.files.operations() == second.files.operations());
    CHECK((first_coverage.counts() == second_coverage.counts()));
  }
}

}  // namespace
}  // namespace cairn::simulation
