// B1.4 to B1.7 in simulated worlds: every hook fails by an exception, by its future or by a kill,
// with a cold and a warm plan cache.
#include <cairn/tests/support/torch.hpp>
// torch first
#include <algorithm>

#include <cairn/tests/simulation/options.hpp>
#include <cairn/tests/simulation/world.hpp>
#include <cairn/tests/support/stride.hpp>

namespace cairn::simulation {
namespace {

using protocol::Operation;

struct Case {
  Hook hook = Hook::kReset;
  std::vector<int> ranks;
  int coordinator = 0;
  HookFault fault = HookFault::kThrows;
};

const std::vector<Case> kSaves = {{Hook::kSetUpStorage, {0}},
                                  {Hook::kPrepareLocalPlan, {0}},
                                  {Hook::kPrepareGlobalPlan, {0}},
                                  {Hook::kMoveData, {2}},
                                  {Hook::kMoveData, {3}, 0, HookFault::kFutureFails},
                                  {Hook::kFinish, {0}}};
const std::vector<Case> kSavesWithCoordinator1 = {{Hook::kSetUpStorage, {1}, 1}, {Hook::kFinish, {1}, 1}};
const std::vector<Case> kLoads = {{Hook::kSetUpStorage, {0}},
                                  {Hook::kPrepareGlobalPlan, {0}},
                                  {Hook::kReadMetadata, {0}},
                                  {Hook::kPrepareLocalPlan, {1}},
                                  {Hook::kMoveData, {3}},
                                  {Hook::kMoveData, {1}, 0, HookFault::kFutureFails},
                                  {Hook::kSetUpStorage, {0}, 3},
                                  {Hook::kReadMetadata, {3}, 1},
                                  {Hook::kMoveData, {0}, 2},
                                  {Hook::kMoveData, {2}, 3, HookFault::kFutureFails},
                                  {Hook::kPrepareGlobalPlan, {1}, 1}};

bool ran(World& world, int job, int rank, std::uint64_t call, Hook hook) {
  const auto& hooks = world.job(job).rank(rank).hooks_run();
  return std::find(hooks.begin(), hooks.end(), std::make_pair(call, hook)) != hooks.end();
}

// Runs the cases one after another in one world. A case without ranks is a call that succeeds.
void run_cases(int size, Operation operation, const std::vector<Case>& cases, bool warm, std::uint64_t seed) {
  Coverage coverage;
  World world(seed, coverage);
  world.tracing = options().trace;
  JobSpec job;
  job.size = size;
  job.quiet = false;
  job.ranks.resize(static_cast<std::size_t>(size));
  const auto add = [&](Operation what, int coordinator) {
    CallSpec call;
    call.operation = what;
    call.coordinator = coordinator;
    // A warm cache knows the plans of the previous call. For a cold cache, every plan is new.
    call.version = {++world.last_content, warm ? 0 : static_cast<int>(world.last_content)};
    job.program.push_back(call);
  };
  if (warm || operation == Operation::kLoad) add(Operation::kSave, cases.front().coordinator);
  const std::uint64_t before = job.program.size();
  for (const Case& one : cases) {
    add(operation, one.coordinator);
    for (const int rank : one.ranks) job.ranks[static_cast<std::size_t>(rank)].hooks[{job.program.size(), one.hook}] = one.fault;
  }
  add(operation, 0);  // after all that, one call succeeds
  world.run(job);

  const std::uint64_t calls = job.program.size();
  CHECK(world.ledger.reports().size() == calls * static_cast<std::uint64_t>(size));
  for (const Report& report : world.ledger.reports()) {
    CAPTURE(report.rank);
    CAPTURE(report.ordinal);
    const auto& failures = report.finished.failures;
    if (report.ordinal <= before || report.ordinal == calls) {
      CHECK(failures.empty());
      continue;
    }
    const Case& one = cases[report.ordinal - before - 1];
    CHECK(report.heard);
    CHECK(failures.size() == one.ranks.size());
    for (const int rank : one.ranks) {
      REQUIRE(failures.count(rank) == 1);
      const Failure& failure = failures.at(rank);
      CHECK(failure.kind == FailureKind::kRaised);
      CHECK(failure.type == "std::runtime_error");
      CHECK(failure.what == std::string("planned fault in ") + name_of(one.hook, operation == Operation::kLoad));
      if (rank == report.rank) CHECK(failure.exception != nullptr);
    }
    if (operation == Operation::kSave)
      CHECK(report.finished.committed ==
            (one.hook == Hook::kFinish && one.fault == HookFault::kFutureFails ? Committed::kYes : Committed::kNo));
    // Set-up, local plan and data run on every rank; the global plan and finish run on the
    // coordinator.
    const bool planned = one.hook == Hook::kMoveData || one.hook == Hook::kFinish;
    CHECK(ran(world, 0, report.rank, report.ordinal, Hook::kSetUpPlanner) ==
          (one.hook != Hook::kReadMetadata || report.rank != one.ranks.front()));
    CHECK(ran(world, 0, report.rank, report.ordinal, Hook::kMoveData) == planned);
    const bool coordinates = report.rank == one.coordinator;
    CHECK(ran(world, 0, report.rank, report.ordinal, Hook::kPrepareGlobalPlan) ==
          (coordinates && (planned || one.hook == Hook::kPrepareGlobalPlan)));
    CHECK(ran(world, 0, report.rank, report.ordinal, Hook::kFinish) == (coordinates && one.hook == Hook::kFinish));
  }
  if (warm && operation == Operation::kSave && size > 1) CHECK(coverage["sent SameSavePlan"] > 0);
  if (warm && operation == Operation::kSave && size > 1) CHECK(coverage["sent UseCachedPlan"] > 0);
  world.check_end(size);
  for (const auto& violation : world.violations()) FAIL_CHECK(violation);
}

TEST_CASE("B1.4 B1.5 B1.6 in simulated worlds: every map has exactly the failing ranks") {
  for (std::uint64_t seed = 0; seed < 3; seed += testing::kStride) {
    for (const bool warm : {false, true}) {
      CAPTURE(seed);
      CAPTURE(warm);
      run_cases(4, Operation::kSave, kSaves, warm, seed);
      run_cases(4, Operation::kSave, kSavesWithCoordinator1, warm, seed);
      run_cases(4, Operation::kLoad, kLoads, warm, seed);
    }
  }
}

TEST_CASE("B1.7 in simulated worlds of one rank") {
  const auto on_rank_0 = [](std::vector<Case> cases) {
    for (Case& one : cases) {
      one.ranks = {0};
      one.coordinator = 0;
    }
    return cases;
  };
  for (const bool warm : {false, true}) {
    run_cases(1, Operation::kSave, on_rank_0(kSaves), warm, 1);
    run_cases(1, Operation::kLoad, on_rank_0(kLoads), warm, 2);
  }
}

// Each case needs its own world, because a killed rank does not come back.
void run_kill(Operation operation, const Case& one, bool warm, std::uint64_t seed, Coverage& coverage) {
  World world(seed, coverage);
  world.tracing = options().trace;
  JobSpec job;
  job.size = 4;
  job.quiet = false;
  job.ranks.resize(4);
  CallSpec call;
  call.coordinator = one.coordinator;
  call.version = {++world.last_content, 0};
  job.program = {call};
  call.operation = operation;
  call.version = {++world.last_content, warm ? 0 : 1};
  job.program.push_back(call);
  const int victim = one.ranks.front();
  job.ranks[static_cast<std::size_t>(victim)].hooks[{2, one.hook}] = HookFault::kKilled;
  world.run(job);

  const Report* first = nullptr;
  std::size_t reports = 0;
  for (const Report& report : world.ledger.reports()) {
    if (report.ordinal != 2) continue;
    CAPTURE(report.rank);
    ++reports;
    CHECK(report.rank != victim);
    REQUIRE(report.finished.failures.count(victim) == 1);
    CHECK(report.finished.failures.size() == 1);
    CHECK(report.finished.failures.at(victim).kind == FailureKind::kLost);
    CHECK(report.finished.committed != Committed::kYes);
    if (victim != one.coordinator) CHECK(report.heard);
    if (first == nullptr) first = &report;
  }
  CHECK(reports == 3);
  world.check_end(4);
  for (const auto& violation : world.violations()) FAIL_CHECK(violation);
}

TEST_CASE("B1.4 to B1.6 with a kill in the place of each exception") {
  Coverage coverage;
  for (std::uint64_t seed = 0; seed < 3; seed += testing::kStride) {
    for (const bool warm : {false, true}) {
      for (const Operation operation : {Operation::kSave, Operation::kLoad}) {
        auto cases = operation == Operation::kSave ? kSaves : kLoads;
        if (operation == Operation::kSave) cases.insert(cases.end(), kSavesWithCoordinator1.begin(), kSavesWithCoordinator1.end());
        for (const Case& one : cases) {
          INFO("seed ", seed, ", ", warm ? "warm" : "cold", " ", name_of(one.hook, operation == Operation::kLoad), " of rank ",
               one.ranks.front(), ", coordinator ", one.coordinator);
          run_kill(operation, one, warm, seed, coverage);
        }
      }
    }
  }
}

}  // namespace
}  // namespace cairn::simulation
