// Formats the progress of a save or load for people. Does no I/O. Internal.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include <cairn/actors/call_progress.hpp>
#include <cairn/runtime/observation/progress.hpp>

namespace cairn {

struct ShownCall {
  ShowProgress how = ShowProgress::kOff;
  int rank = 0;  // only rank 0 shows anything
  int ranks = 1;
  bool is_save = true;
  std::string checkpoint_id;
};

// The progress of one call at one moment.
struct ShownProgress : ShownCall {
  CallProgress::Step step = CallProgress::Step::kJoining;
  protocol::Moved moved;                            // the progress of all ranks, or of this rank if nothing else is known
  bool of_all_ranks = false;                        // whether `moved` is of all ranks
  double bytes_per_second = 0;                      // 0: not known
  std::optional<std::chrono::milliseconds> left{};  // until the last rank has moved its data
  int slowest_rank = -1;                            // -1: not known, or none
  int slowest_percent = 0;
};

// Returns the progress to show; `now` is needed for rates. If this rank is done but others still
// move data, shows the phase of the others.
ShownProgress shown(const CallProgress::Seen& seen, MonotonicTime now);

// Does the same for the handle of an asynchronous save. Never sets the steps kStaging, kQueued and
// kDone, which only the caller knows.
SaveProgress progress_of(const CallProgress::Seen& seen, MonotonicTime now);

// Returns the percentage moved, 0 to 100: by bytes, or by items if there are no bytes.
int percent_of(const protocol::Moved& moved);
// Return the rate, and the time left at that rate; 0 or nothing if they are unknown.
double rate_of(const protocol::Moved& moved, Duration elapsed);
std::optional<std::chrono::milliseconds> time_left(const protocol::Moved& moved, Duration elapsed);

// Returns "saving run/step_100: writing 45 %, 4.14 of 9.20 GiB, 1.93 GiB/s, slowest rank 3 (12 %),
// 5 s left", at most `columns` wide. If that is too wide, first shortens the id, then leaves out
// the rate, the volume, the time left and the id, in this order.
std::string status_text(const ShownProgress& progress, int columns);
// Returns the log line for the beginning of a phase: "saving 'run/step_100': writing on 4 ranks".
std::string phase_text(const ShownProgress& progress);
// Returns the log line for the end: "saved 'run/step_100' in 2.4 s: 9.20 GiB at 3.83 GiB/s", over
// all phases.
std::string end_text(const ShownProgress& progress, bool ok, std::chrono::milliseconds took);

}  // namespace cairn
