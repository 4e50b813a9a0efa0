// The progress of saves and loads: how rank 0 shows it, and what the handle of an asynchronous save
// returns.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include <cairn/base/failure.hpp>

namespace cairn {

// How rank 0 shows the progress of saves and loads.
enum class ShowProgress : std::uint8_t {
  kOff = 1,
  // Logs one line at level info (base/log.hpp) for each phase after the join, and one for the end
  // of the call. CAIRN_LOG=info or `set_log_level` makes these lines visible.
  kLog,
  // Redraws one line five times a second, with phase, percentage, rate, slowest rank and time left.
  // Works only if standard error is a terminal; under cairn-launch, the standard error of
  // cairn-launch. If there is no such terminal, or if the log does not go to standard error, does
  // the same as kLog. Other output appears above the progress line. If a program that runs without
  // cairn-launch writes several lines at once, the end of the progress line may remain visible to
  // the right of one of these lines.
  kTerminal,
};

// The data of one rank or of all ranks. The `_done` fields count what writers have taken, which may
// still be in flight to the store.
struct WriteProgress {
  std::uint64_t items = 0;
  std::uint64_t items_done = 0;
  std::uint64_t bytes = 0;  // counts bytes of tensors
  std::uint64_t bytes_done = 0;
  double bytes_per_second = 0;                    // since this rank began to write; only while data is written
  std::optional<std::chrono::milliseconds> left;  // until writing ends, at the rate of this rank, or of the slowest
};

// The progress of an asynchronous save. See AsyncSaveResponse::progress. The members of
// WriteProgress are those of this rank's part, and are known once the rank writes.
struct SaveProgress : WriteProgress {
  enum class Step : std::uint8_t {
    kStaging = 1,  // the state is being copied
    kQueued,       // waiting for an earlier save
    kPlanning,
    kWriting,
    kPublishing,  // this rank has written everything, and waits for publication
    kDone,
  };
  Step step = Step::kStaging;
  // Host memory held by this checkpointer's stager or, if the state is streamed, by the writer.
  std::uint64_t staging_bytes = 0;

  // The progress of all ranks together, as this rank last received it, at most
  // RuntimeOptions::progress_interval ago. Absent before the first such message, and therefore
  // during all of a short save. Does not count ranks that have not reported yet.
  struct Job : WriteProgress {
    Phase phase = Phase::kLocalPlan;  // the coordinator's phase: local plan, global plan, write or finish
    int ranks_done = 0;               // the ranks that have ended the phase
    // The rank that has done the smallest fraction of its part, among those that have not ended the
    // phase. -1: none. While the coordinator plans or publishes, this is the coordinator.
    int slowest_rank = -1;
    std::uint64_t slowest_bytes = 0;
    std::uint64_t slowest_bytes_done = 0;
  };
  std::optional<Job> job;
};

const char* to_string(SaveProgress::Step step) noexcept;

}  // namespace cairn
