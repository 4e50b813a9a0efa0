// Each actor of a rank dies at each message in turn: the failure map names it, and the next call
// works. So does a rank for whose bytes the others wait.
#include <cairn/tests/support/torch.hpp>
// torch first
#include <cairn/tests/simulation/options.hpp>
#include <cairn/tests/simulation/world.hpp>
#include <cairn/tests/support/stride.hpp>

namespace cairn::simulation {
namespace {

using protocol::Operation;

struct Victim {
  Trouble::What what = Trouble::What::kPlannerDies;
  const char* name = "";
};
constexpr Victim kVictims[] = {{Trouble::What::kPlannerDies, "planner"},
                               {Trouble::What::kStorageDies, "storage"},
                               {Trouble::What::kCoordinatorDies, "coordinator"},
                               {Trouble::What::kLinksDie, "links"},
                               {Trouble::What::kSupervisorDies, "supervisor"}};
constexpr int kCoordinator = 1;

// Returns a job of three ranks that saves once.
JobSpec saving_job(World& world) {
  JobSpec job;
  job.size = 3;
  CallSpec call;
  call.coordinator = kCoordinator;
  call.version = {++world.last_content, 0};
  job.program = {call};
  return job;
}

Trouble trouble_after(std::uint64_t message, Trouble::What what, int rank) {
  Trouble trouble;
  trouble.what = what;
  trouble.rank = rank;
  trouble.when = Trouble::When::kMessage;
  trouble.operation = message;
  return trouble;
}

// Returns false if the trouble would have come after the end.
bool check_world(World& world, Trouble::What what, Coverage& coverage) {
  world.check_end(2);
  for (const auto& violation : world.violations()) FAIL_CHECK(violation);
  return coverage[to_string(what)] > 0;
}

// Returns false if no call was running any more when the actor would have died.
bool die_at(const Victim& victim, int rank, Operation operation, std::uint64_t message, Coverage& coverage) {
  World world(message, coverage);
  world.tracing = options().trace;
  JobSpec job = saving_job(world);
  CallSpec call = job.program[0];
  if (operation == Operation::kLoad) world.run(job);
  job.program.clear();
  job.quiet = false;
  job.lockstep = true;
  call.operation = operation;
  for (int i = 0; i < 4; ++i) {
    call.version = {++world.last_content, 0};
    job.program.push_back(call);
  }
  job.troubles.push_back(trouble_after(message, victim.what, rank));
  world.run(std::move(job));
  std::map<std::uint64_t, std::vector<const Report*>> calls;
  for (const Report& report : world.ledger.reports())
    if (report.job == world.jobs() - 1) calls[report.ordinal].push_back(&report);
  bool hit = false;
  for (const auto& one_call : calls) {
    const auto& reports = one_call.second;
    CAPTURE(one_call.first);
    CHECK(reports.size() == 3);
    const bool is_after = hit;
    for (const Report* report : reports) {
      CAPTURE(report->rank);
      const FailureMap& failures = report->finished.failures;
      if (is_after) CHECK_MESSAGE(failures.empty(), to_string(report->finished));
      if (is_after) CHECK(report->ended - report->began < std::chrono::seconds(1));
      if (failures.empty()) continue;
      hit = true;
      CHECK(failures.size() == 1);
      CHECK(failures.begin()->first == rank);
      CHECK_MESSAGE(failures.begin()->second.what.find(victim.name) != std::string::npos, failures.begin()->second.what);
    }
  }
  return check_world(world, victim.what, coverage);
}

TEST_CASE("an actor that dies at any message is named, and the next call works") {
  for (const Operation operation : {Operation::kSave, Operation::kLoad, Operation::kAgree})
    for (const Victim& victim : kVictims)
      for (const int rank : {kCoordinator, 2}) {
        if (victim.what == Trouble::What::kCoordinatorDies && rank != kCoordinator) continue;
        for (std::uint64_t message = options().first_seed + 1; message <= options().last_seed + 1; message += testing::kStride) {
          Coverage coverage;
          INFO("the ", std::string(victim.name), " of rank ", rank, " dies after message ", message, " in a ",
               std::string(to_string(operation)));
          if (!die_at(victim, rank, operation, message, coverage)) break;
        }
      }
}

// Returns false if the load had ended when the rank would have been lost.
bool lose_at(Trouble::What what, int rank, std::uint64_t message, Coverage& coverage) {
  World world(message, coverage);
  world.tracing = options().trace;
  JobSpec job = saving_job(world);
  world.run(job);
  job.program[0].operation = Operation::kLoad;
  job.shares_reads = true;
  job.quiet = false;
  job.troubles.push_back(trouble_after(message, what, rank));
  job.troubles[0].length = std::chrono::seconds(60);
  world.run(std::move(job));
  std::vector<Report> survivors;
  for (const Report& report : world.ledger.reports())
    if (report.job == world.jobs() - 1 && report.rank != rank) survivors.push_back(report);
  CHECK(survivors.size() == 2);
  for (const Report& report : survivors) {
    const FailureMap& failures = report.finished.failures;
    CHECK((failures == survivors.front().finished.failures));
    CHECK(report.ended - report.began < world.options.phase_deadline);
    if (!failures.empty()) CHECK_MESSAGE((failures.size() == 1 && failures.count(rank) == 1), to_string(report.finished));
  }
  return check_world(world, what, coverage);
}

TEST_CASE("a rank that reads for others is lost at any message, and the others end with the same map") {
  for (const auto what : {Trouble::What::kKillProcess, Trouble::What::kKillMachine, Trouble::What::kFreeze})
    for (const int rank : {kCoordinator, 2})
      for (std::uint64_t message = options().first_seed + 1; message <= options().last_seed + 1; message += testing::kStride) {
        Coverage coverage;
        INFO("rank ", rank, ", after message ", message, ": ", std::string(to_string(what)));
        if (!lose_at(what, rank, message, coverage)) break;
      }
}

}  // namespace
}  // namespace cairn::simulation
