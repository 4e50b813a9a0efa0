// Progress reports: the messages between ranks and coordinator, and that no call depends on them.
#include "steps.hpp"

namespace cairn::test {
namespace {

using std::chrono::milliseconds;

std::vector<Duration> progress_timers(const Effects& effects) {
  std::vector<Duration> found;
  for (const auto& timer : all_of<StartTimer>(effects))
    if (timer.timer == Timer::kProgress) found.push_back(timer.after);
  return found;
}

bool stops_progress(const Effects& effects) {
  for (const auto& timer : all_of<StopTimer>(effects))
    if (timer.timer == Timer::kProgress) return true;
  return false;
}

Progress progress_of(std::uint64_t number, Moved moved = {}) { return {number, moved}; }

// --- a rank --------------------------------------------------------------------------------------

TEST_CASE("progress: a rank reports nothing before its call begins or after it ends") {
  RankSteps rank;
  CHECK(was_ignored(rank.step(ProgressDue{})));
  CHECK(progress_timers(rank.step(call_of(1))).empty());
  CHECK(was_ignored(rank.step(ProgressDue{})));
  CHECK(was_ignored(rank.receive(0, JobProgress{1}, 0)));
  CHECK(progress_timers(rank.receive(0, Begin{1, {}}, 1)).size() == 1);
  CHECK(sent<Progress>(rank.step(ProgressDue{})).size() == 1);
  const auto effects = rank.receive(Told{1, {}, Committed::kYes, "id"});
  CHECK(stops_progress(effects));
  CHECK(was_ignored(rank.step(ProgressDue{})));
}

TEST_CASE("progress: a rank reports in every phase, at the given interval") {
  RuntimeOptions options;
  options.progress_interval = milliseconds(300);
  RankSteps rank(1, 2, options);
  const RunTask move = rank.move(1);
  const Moved moved{10, 3, 1000, 400};
  auto effects = rank.step(ProgressDue{moved});
  REQUIRE(sent<Progress>(effects).size() == 1);
  CHECK(sent<Progress>(effects)[0].first == 0);
  CHECK(sent<Progress>(effects)[0].second.number == 1);
  CHECK(sent<Progress>(effects)[0].second.moved == moved);
  CHECK(progress_timers(effects) == std::vector<Duration>{milliseconds(300)});
  rank.done(move);
  effects = rank.step(ProgressDue{moved});
  REQUIRE(sent<Progress>(effects).size() == 1);
  CHECK(sent<Progress>(effects)[0].second.number == 2);
  // Numbering restarts with the next attempt.
  rank.receive(Told{1, {}, Committed::kYes, "id"});
  rank.move(2, 2);
  CHECK(sent<Progress>(rank.step(ProgressDue{}))[0].second.number == 1);
}

TEST_CASE("progress: ranks of larger worlds report less often; 0 is never") {
  RuntimeOptions options;
  RankSteps many(1, 1000, options);
  many.step(call_of(1));
  CHECK(progress_timers(many.receive(0, Begin{1, {}}, 1)) == std::vector<Duration>{milliseconds(2000)});
  options.progress_interval = milliseconds(0);
  RankSteps never(1, 2, options);
  never.step(call_of(1));
  CHECK(progress_timers(never.receive(0, Begin{1, {}}, 1)).empty());
}

TEST_CASE("progress: repeated, late and unrequested answers are not shown") {
  RankSteps rank;
  rank.move(1);
  CHECK(was_ignored(rank.receive(JobProgress{1, Phase::kWrite})));
  for (int i = 0; i < 3; ++i) rank.step(ProgressDue{});
  auto shown = all_of<ProgressTold>(rank.receive(JobProgress{2, Phase::kWrite, 1, {4, 2, 8, 4}, 1, {2, 0, 4, 0}}));
  REQUIRE(shown.size() == 1);
  CHECK(shown[0].job.moved == Moved{4, 2, 8, 4});
  CHECK(shown[0].job.slowest_rank == 1);
  CHECK(was_ignored(rank.receive(JobProgress{2, Phase::kWrite})));
  CHECK(was_ignored(rank.receive(JobProgress{1, Phase::kWrite})));
  CHECK(was_ignored(rank.receive(0, JobProgress{3, Phase::kWrite}, 7)));  // of another attempt
  CHECK(was_ignored(rank.receive(1, JobProgress{3, Phase::kWrite}, 1)));  // not from the coordinator
  CHECK(all_of<ProgressTold>(rank.receive(JobProgress{3, Phase::kWrite})).size() == 1);
}

// --- the coordinator -----------------------------------------------------------------------------

TEST_CASE("progress: repeated and late ones change nothing") {
  CoordinatorSteps coordinator(2);
  coordinator.plan(1);
  CHECK(sent<JobProgress>(coordinator.receive(1, progress_of(2, {4, 2, 40, 20}))).size() == 1);
  CHECK(was_ignored(coordinator.receive(1, progress_of(2, {4, 4, 40, 40}))));
  CHECK(was_ignored(coordinator.receive(1, progress_of(1, {4, 1, 40, 10}))));
  const auto told = only<JobProgress>(coordinator.receive(0, progress_of(1, {4, 3, 40, 30})), 0);
  CHECK(told.number == 1);
  CHECK(told.moved == Moved{8, 5, 80, 50});
}

TEST_CASE("progress: the slowest rank has done the smallest fraction of its part") {
  CoordinatorSteps coordinator(3);
  coordinator.join(1);
  auto job = sent<JobProgress>(coordinator.receive(1, progress_of(1))).at(0).second;
  CHECK(job.phase == Phase::kLocalPlan);
  CHECK(job.ranks_done == 0);
  CHECK(job.slowest_rank == 0);
  for (const int rank : {0, 1}) coordinator.receive(rank, LocalSavePlan{plan_of(rank), plan_digest(*plan_of(rank))});
  job = sent<JobProgress>(coordinator.receive(1, progress_of(2))).at(0).second;
  CHECK(job.ranks_done == 2);
  CHECK(job.slowest_rank == 2);

  const auto effects = coordinator.receive(2, LocalSavePlan{plan_of(2), plan_digest(*plan_of(2))});
  job = sent<JobProgress>(coordinator.receive(1, progress_of(3))).at(0).second;
  CHECK(job.phase == Phase::kGlobalPlan);
  CHECK(job.slowest_rank == 0);  // all ranks wait for rank 0
  coordinator.run_tasks(effects);

  coordinator.receive(0, progress_of(1, {2, 1, 100, 50}));
  coordinator.receive(1, progress_of(4, {2, 1, 1000, 400}));
  job = sent<JobProgress>(coordinator.receive(2, progress_of(1, {8, 1, 0, 0}))).at(0).second;  // it has bytes objects only
  CHECK(job.phase == Phase::kWrite);
  CHECK(job.ranks_done == 0);
  CHECK(job.moved == Moved{12, 3, 1100, 450});
  CHECK(job.slowest_rank == 2);
  coordinator.written(2);
  job = sent<JobProgress>(coordinator.receive(0, progress_of(2, {2, 1, 100, 50}))).at(0).second;
  CHECK(job.ranks_done == 1);
  CHECK(job.moved == Moved{12, 10, 1100, 450});  // its result counts more than its last report
  CHECK(job.slowest_rank == 1);
  CHECK(job.slowest == Moved{2, 1, 1000, 400});
  coordinator.written(1);
  coordinator.written(0);
  job = sent<JobProgress>(coordinator.receive(2, progress_of(2, {8, 8, 0, 0}))).at(0).second;
  CHECK(job.phase == Phase::kFinish);
  CHECK(job.moved == Moved{12, 12, 1100, 1100});
  CHECK(job.slowest_rank == 0);
}

TEST_CASE("progress: sums of invalid reports do not overflow") {
  CoordinatorSteps coordinator(2);
  coordinator.plan(1);
  const std::uint64_t most = ~std::uint64_t{0};
  coordinator.receive(0, progress_of(1, {most, most, most, most}));
  const auto job = sent<JobProgress>(coordinator.receive(1, progress_of(1, {5, 5, 5, 5}))).at(0).second;
  CHECK(job.moved == Moved{most, most, most, most});
}

}  // namespace
}  // namespace cairn::test
