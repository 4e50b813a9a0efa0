// The options of a CheckpointManager, and what it restored.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <cairn/base/clock.hpp>
#include <cairn/state/checkpoint_writer.hpp>
#include <cairn/state/planner.hpp>
#include <cairn/storage/runs/checkpoint_info.hpp>
#include <cairn/storage/runs/retention_policy.hpp>

namespace cairn {

// Must be the same on all ranks, unless stated otherwise.
struct CheckpointManagerOptions {
  std::string name = "manager";  // the name of its checkpointers; unique among the managers of a world
  RetentionPolicy retention;
  DataWithoutRecord data_without_record = DataWithoutRecord::kRefuse;  // rank 0's is used

  // `should_save` returns true at each step that is a multiple of this; 0: off.
  std::int64_t save_every_steps = 0;
  // `should_save` returns true when this time has passed on rank 0's clock since the last save
  // began or the manager was created; 0: off.
  std::chrono::milliseconds save_every{0};
  // Signals that cause a save, whichever rank gets them. Schedulers send such signals, for example
  // SIGTERM or SIGUSR1, before they end a job.
  std::vector<int> save_on_signal;
  // The time from a signal's arrival until the save must be done, including the time until all
  // ranks have called `should_save` and `save`. When the grace period has passed, a `should_save`
  // that waits for other ranks, or the save, fails on all ranks with kDeadline. Earlier
  // asynchronous saves that are still running are then cancelled. Nothing waits for removal longer
  // than this (see above). The sender of the signal should wait a little longer before it ends the
  // job. cairn-launch sets CAIRN_GRACE_SECONDS to the time that it waits; the grace period is then
  // at most nine tenths of that time, whatever this option says.
  std::chrono::milliseconds grace_period{std::chrono::seconds(30)};
  // How often the ranks communicate in `should_save`, if `save_every` or `save_on_signal` is set.
  // All other calls send nothing. Rank 0 measures the time between calls and chooses the next call
  // in which the ranks communicate: about `ask_every` later, but before `save_every` ends. The
  // number of calls in between at most doubles each time, up to 64, or 8 if `save_on_signal` is
  // set. So all ranks learn of a signal within about `ask_every`, or within 8 calls if the calls
  // have become slower. This time is part of the grace period. 0: in every call.
  std::chrono::milliseconds ask_every{std::chrono::seconds(1)};
  // If not 0, replaces `ask_every`: the ranks communicate at every step that is a multiple of this.
  std::int64_t ask_every_steps = 0;

  std::map<std::string, std::string> user_metadata;  // for every checkpoint, e.g. a git revision; rank 0's is used
  SavePlannerOptions planning;
  CheckpointWriterOptions writer;        // ignores `overwrite`, `run_url` and `before_attempt`
  const Clock* clock = &system_clock();  // borrowed; must outlive the manager
};

struct ValidCheckpoint {
  CheckpointInfo checkpoint;
  std::vector<PassedOver> passed_over;  // checkpoints of unknown commit order come first
  LoadReport report;                    // the report of this rank, from restore_latest only
};

}  // namespace cairn
