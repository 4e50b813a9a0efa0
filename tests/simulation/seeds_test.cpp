// Runs many worlds, one per seed, with every kind of fault. The ledger must find no violation.
#include <cairn/tests/support/torch.hpp>
// torch first
#include <iostream>

#include <cairn/tests/simulation/options.hpp>
#include <cairn/tests/simulation/scenario.hpp>
#include <cairn/tests/simulation/world.hpp>

namespace cairn::simulation {
namespace {

constexpr int kFailuresExplainedMax = 20;
// With this many seeds, every rare branch must be hit. Fewer seeds are allowed, for sanitizers or a
// replay.
constexpr std::uint64_t kSeedsForCoverage = 2000;

// Every one of these must be hit by some seed. A rare branch that no world takes is untested.
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
    "a caller cancels",
    "cancelled as rank: joining",
    "cancelled as rank: preparing",
    "cancelled as rank: planned",
    "cancelled as rank: moving",
    "cancelled as rank: reported",
    "its callers ended a call: cancelled",
    "its callers ended a call: deadline",
    "ignored: Cancel of a save that is being published",
    "planner actor died",
    "storage actor died",
    "coordinator actor died",
    "coordinator lost in a save: joining",
    "coordinator lost in a save: local plans",
    "coordinator lost in a save: global plan",
    "coordinator lost in a save: moving",
    "coordinator lost in a save: finishing",
    "coordinator lost in a save: settling",
    "coordinator lost in a load: joining",
    "coordinator lost in a load: local plans",
    "coordinator lost in a load: global plan",
    "coordinator lost in a load: moving",
    "coordinator lost in a agreement: joining",
    "coordinator lost in a agreement: deciding",
    "coordinator killed: finishing",
    "coordinator frozen: finishing",
    "coordinator's actor died: finishing",
    "killed as rank: joining",
    "killed as rank: preparing",
    "killed as rank: planned",
    "killed as rank: moving",
    "killed as rank: reported",
    "coordinator's deadline",
    "rank's deadline",
    "ended alone",
    "a successor ended the call",
    "a lost rank came back and heard the outcome",
    "an outcome was told again",
    "an outcome that nobody keeps was asked for",
    "received StatusReply: absent",
    "received StatusReply: ended",
    "received StatusReply: attached",
    "received StatusReply: promised",
    "received StatusReply: orphaned",
    "sent PhaseStopped",
    "became found its coordinator again",
    "became succession: asking the store",
    "several failures in one map",
    "ignored: message of another attempt",
    "ignored: Outcome of another call",
    "ignored: failure of a rank that has done its part",
    "ignored: end of a task that is not running",
    "sent SameSavePlan",
    "sent NeedLocalPlan",
    "shown how far all ranks are in phase local_plan",
    "shown how far all ranks are in phase write",
    "shown how far all ranks are in phase read",
    "shown how far all ranks are in phase finish",
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
    "agreement succeeded",
    "a text cannot be sent",
    "ranks hold different values",
    "saves are in flight together",
    "a save waits for its turn",
    "a save is dropped before its turn",
    "replaced before its turn",
    "replaced before its turn on some ranks, and after it on others",
    "cancelled in flight, before its turn",
    "cancelled in flight, in its turn",
    "trouble in set_up_storage_writer",
    "trouble in write_data",
    "trouble in finish",
    "trouble in read_data",
    "trouble in decide",
};

// Prints "seed <number>: <command that replays it>" for each failing seed, with its violations
// below. soak.sh parses these lines.
TEST_CASE("whatever befalls the ranks of a job, what was promised holds") {
  Coverage coverage;
  int failing = 0;
  std::uint64_t events = 0;
  for (std::uint64_t seed = options().first_seed; seed <= options().last_seed; ++seed) {
    World world(seed, coverage);
    world.tracing = options().trace;
    world.run_seed();
    events += world.time.events();
    if (world.violations().empty()) continue;
    std::string text = "seed " + std::to_string(seed) + ": " + options().program +
                       " -tc=\"whatever befalls*\" --seeds=" + std::to_string(seed) + " --trace";
    if (++failing <= kFailuresExplainedMax)
      for (const auto& violation : world.violations()) text += "\n  " + violation;
    FAIL_CHECK(text);
  }
  const std::uint64_t seeds = options().last_seed - options().first_seed + 1;
  std::cout << seeds << " seeds, " << failing << " failing, " << events << " events\n";
  if (seeds < kSeedsForCoverage) return;
  for (const auto& [what, count] : coverage.counts()) std::cout << "  " << count << "  " << what << "\n";
  for (const std::string branch : kRareBranches) CHECK_MESSAGE(coverage[branch] > 0, "no seed met \"", branch, "\"");
}

TEST_CASE("what was promised holds in worlds of 64 ranks, too") {
  Coverage coverage;
  const std::uint64_t seeds = (options().last_seed - options().first_seed) / 12 + 1;  // each costs as much as many small ones
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    CAPTURE(seed);
    World world(seed, coverage);
    world.tracing = options().trace;
    JobSpec job = troubled_job(world.dice, world.last_content, 64);
    plan_rare_troubles(world.late_dice, job);
    plan_cancellations(world.caller_dice, job);
    plan_agreements(world.agreement_dice, job);
    world.run(std::move(job));
    world.check_end(2);
    for (const auto& violation : world.violations()) FAIL_CHECK(violation);
  }
  if (seeds < 160) return;
  for (const std::string branch : {"coordinator lost in a save: joining", "coordinator lost in a save: moving", "load succeeded",
                                   "save failed, committed no", "agreement succeeded", "settled: committed"})
    CHECK_MESSAGE(coverage[branch] > 0, "no world of 64 ranks met \"", branch, "\"");
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
    CHECK(first.digest() == second.digest());
    CHECK((first_coverage.counts() == second_coverage.counts()));
  }
}

}  // namespace
}  // namespace cairn::simulation
