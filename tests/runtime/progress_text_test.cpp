// Progress of a save or load as text: pure functions.
#include <cairn/tests/support/plain.hpp>
//

#include <cairn/runtime/observation/progress_text.hpp>

namespace cairn::testing {
namespace {

using protocol::JobProgress;
using protocol::Moved;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Step = CallProgress::Step;

MonotonicTime at(Duration time) { return MonotonicTime(seconds(1000) + time); }

// Returns the view of a rank that began to write at 0 s.
CallProgress::Seen writing(const Moved& own) {
  CallProgress::Seen seen;
  seen.step = Step::kMoving;
  seen.own = own;
  seen.moving_since = at(seconds(0));
  return seen;
}

CallProgress::Seen told(CallProgress::Seen seen, const JobProgress& job, Duration when) {
  seen.job = job;
  seen.job_at = at(when);
  return seen;
}

ShownProgress example() {
  ShownProgress progress;
  progress.checkpoint_id = "run/step_100";
  progress.ranks = 4;
  progress.step = Step::kMoving;
  progress.moved = {128, 60, 9'878'424'781, 4'446'000'000};
  progress.of_all_ranks = true;
  progress.bytes_per_second = 1.934 * 0x1p30;
  progress.left = milliseconds(5200);
  progress.slowest_rank = 3;
  progress.slowest_percent = 12;
  return progress;
}

TEST_CASE("progress text: nothing is divided by nothing") {
  CHECK(percent_of({}) == 0);
  CHECK(percent_of({4, 1, 0, 0}) == 25);
  CHECK(percent_of({4, 4, 1000, 999}) == 99);
  CHECK(percent_of({4, 4, ~0ull, ~0ull}) == 100);
  CHECK(rate_of({4, 1, 100, 50}, Duration(0)) == 0);
  CHECK(rate_of({4, 1, 100, 50}, -seconds(1)) == 0);
  CHECK(rate_of({4, 1, 100, 50}, seconds(2)) == 25);
  CHECK_FALSE(time_left({4, 1, 100, 0}, seconds(2)));
  CHECK_FALSE(time_left({4, 1, 100, 50}, Duration(0)));
  CHECK_FALSE(time_left({4, 1, ~0ull, 1}, seconds(2)));  // too long to be useful
  CHECK(time_left({4, 1, 100, 50}, seconds(2)) == milliseconds(2000));
  CHECK(time_left({4, 1, 100, 100}, seconds(2)) == milliseconds(0));
}

TEST_CASE("progress text: a rank that knows nothing of the others shows its own part") {
  const ShownProgress alone = shown(writing({4, 1, 100, 50}), at(seconds(2)));
  CHECK_FALSE(alone.of_all_ranks);
  CHECK(alone.moved == Moved{4, 1, 100, 50});
  CHECK(alone.bytes_per_second == 25);
  CHECK(alone.left == milliseconds(2000));
  CHECK(alone.slowest_rank == -1);
  CHECK(shown({}, at(seconds(2))).step == Step::kJoining);
}

TEST_CASE("progress text: shows all ranks' figures and the slowest rank's time left") {
  const JobProgress job{5, Phase::kWrite, 1, {16, 8, 400, 200}, 2, {4, 1, 100, 10}};
  const ShownProgress all = shown(told(writing({4, 2, 100, 60}), job, seconds(2)), at(seconds(3)));
  CHECK(all.of_all_ranks);
  CHECK(all.moved == job.moved);
  CHECK(all.bytes_per_second == 100);
  CHECK(all.slowest_rank == 2);
  CHECK(all.slowest_percent == 10);
  CHECK(all.left == milliseconds(18'000));
}

TEST_CASE("progress text: a rank that is done shows the progress of the others") {
  CallProgress::Seen seen = writing({4, 4, 100, 100});
  seen.step = Step::kMoved;
  CHECK(shown(seen, at(seconds(2))).step == Step::kMoved);
  const JobProgress busy{5, Phase::kWrite, 1, {16, 8, 400, 200}, 2, {4, 0, 100, 0}};
  CHECK(shown(told(seen, busy, seconds(2)), at(seconds(2))).step == Step::kMoving);
  CHECK(shown(told(seen, busy, seconds(2)), at(seconds(2))).slowest_rank == 2);
  CHECK_FALSE(shown(told(seen, busy, seconds(2)), at(seconds(2))).left);  // it has not begun
  const JobProgress done{6, Phase::kFinish, 0, {16, 16, 400, 400}, 0, {4, 4, 100, 100}};
  CHECK(shown(told(seen, done, seconds(4)), at(seconds(4))).step == Step::kMoved);
  // Job progress that was reported during planning says nothing about writing.
  const JobProgress stale{1, Phase::kLocalPlan, 1, {}, 2, {}};
  const ShownProgress own = shown(told(writing({4, 1, 100, 50}), stale, seconds(0)), at(seconds(2)));
  CHECK(own.slowest_rank == -1);
  CHECK(own.moved == Moved{4, 1, 100, 50});
}

TEST_CASE("progress text: the line on a terminal") {
  CHECK(status_text(example(), 120) ==
        "saving run/step_100: writing 45 %, 4.14 of 9.20 GiB, 1.93 GiB/s, slowest rank 3 (12 %), 5.2 s left");
  ShownProgress progress = example();
  progress.is_save = false;
  progress.ranks = 1;
  progress.left.reset();
  progress.bytes_per_second = 0;
  CHECK(status_text(progress, 120) == "loading run/step_100: reading 45 %, 4.14 of 9.20 GiB");
  progress.moved = {10, 3, 0, 0};
  CHECK(status_text(progress, 120) == "loading run/step_100: reading 30 %, 3 of 10 items");
  progress.step = Step::kMoved;
  CHECK(status_text(progress, 120) == "loading run/step_100: finishing");
  progress = example();
  progress.step = Step::kPlanning;
  CHECK(status_text(progress, 120) == "saving run/step_100: planning, waits for rank 3");
  progress.step = Step::kJoining;
  CHECK(status_text(progress, 120) == "saving run/step_100: waiting for all ranks");
  progress.step = Step::kMoved;
  CHECK(status_text(progress, 120) == "saving run/step_100: publishing");
}

TEST_CASE("progress text: a narrow terminal keeps the slowest rank longest") {
  const auto text = [](int columns) { return status_text(example(), columns); };
  CHECK(text(97) == "saving …/step_100: writing 45 %, 4.14 of 9.20 GiB, 1.93 GiB/s, slowest rank 3 (12 %), 5.2 s left");
  CHECK(text(81) == "saving …p_100: writing 45 %, 4.14 of 9.20 GiB, slowest rank 3 (12 %), 5.2 s left");
  CHECK(text(70) == "saving run/step_100: writing 45 %, slowest rank 3 (12 %), 5.2 s left");
  CHECK(text(60) == "saving run/step_100: writing 45 %, slowest rank 3 (12 %)");
  CHECK(text(40) == "writing 45 %, slowest rank 3 (12 %)");
  CHECK(text(20) == "writing 45 %, slowe");
  CHECK(text(1).empty());
  CHECK(text(0).empty());
}

TEST_CASE("progress text: nothing in an id reaches the terminal's controls") {
  ShownProgress progress = example();
  progress.step = Step::kMoved;
  progress.checkpoint_id = "a\x1b[2J\r\n\x07\x7f\xc2\x9b\xff\xc3\xa9";
  CHECK(status_text(progress, 120) == "saving a?[2J?????\x3f\xc3\xa9: publishing");
  CHECK(phase_text(progress) == "saving 'a?[2J?????\x3f\xc3\xa9': publishing");
}

TEST_CASE("progress text: lines of the log") {
  ShownProgress progress = example();
  CHECK(phase_text(progress) == "saving 'run/step_100': writing on 4 ranks");
  progress.step = Step::kMoved;
  CHECK(phase_text(progress) == "saving 'run/step_100': publishing");
  CHECK(end_text(progress, true, milliseconds(2400)) == "saved 'run/step_100' in 2.4 s: 9.20 GiB at 3.83 GiB/s");
  CHECK(end_text(progress, false, milliseconds(61'000)) == "saving 'run/step_100' has failed after 61 s");
  progress.of_all_ranks = false;
  CHECK(end_text(progress, true, std::chrono::hours(3)) == "saved 'run/step_100' in 3 h: 9.20 GiB of this rank's at 893 KiB/s");
  progress.is_save = false;
  progress.moved = {};
  progress.ranks = 1;
  CHECK(phase_text(progress) == "loading 'run/step_100': finishing");
  CHECK(end_text(progress, true, milliseconds(0)) == "loaded 'run/step_100' in 0.0 s");
}

}  // namespace
}  // namespace cairn::testing
