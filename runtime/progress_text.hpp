// How far a save or load is, in words for people. Pure. Internal.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include <cairn/actors/call_progress.hpp>
#include <cairn/runtime/async_save.hpp>

namespace cairn {

// What is seen of one call at one moment.
struct ShownProgress {
  bool is_save = true;
  std::string checkpoint_id;
  int ranks = 1;
  CallProgress::Step step = CallProgress::Step::kJoining;
  protocol::Moved moved;                            // of all ranks, or of this one, while no others are known
  bool of_all_ranks = false;                        // which of the two
  double bytes_per_second = 0;                      // 0: not known
  std::optional<std::chrono::milliseconds> left{};  // until the last rank has moved its data
  int slowest_rank = -1;                            // -1: not known, or none
  int slowest_percent = 0;
};

// `now`: for rates. A job's phase counts, where it is known: this rank may be done and others not.
ShownProgress shown(const CallProgress::Seen& seen, MonotonicTime now);

// The same for the handle of an asynchronous save. Its steps before planning and at the end are for others to tell.
SaveProgress progress_of(const CallProgress::Seen& seen, MonotonicTime now);

// Of what is to be moved, 0 to 100: by bytes, or by items where there are none.
int percent_of(const protocol::Moved& moved);
// At the pace so far. Nothing where nothing can be said.
double rate_of(const protocol::Moved& moved, Duration elapsed);
std::optional<std::chrono::milliseconds> time_left(const protocol::Moved& moved, Duration elapsed);

// "saving run/step_100: writing 45 %, 4.1 of 9.2 GB, 1.93 GB/s, slowest rank 3 (12 %), 5 s left", no wider than so many columns: the
// checkpoint id is cut first.
std::string status_text(const ShownProgress& progress, int columns);
// The same for a log, when a phase begins: "saving 'run/step_100': writing on 4 ranks".
std::string phase_text(const ShownProgress& progress);
// At its end: "saved 'run/step_100' in 2.4 s: 9.20 GB at 3.83 GB/s", all phases together.
std::string end_text(const ShownProgress& progress, bool ok, std::chrono::milliseconds took);

}  // namespace cairn
