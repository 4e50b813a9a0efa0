// Options of saves, asynchronous saves and loads: for Checkpointer, and for the free functions in
// cairn.hpp.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include <cairn/runtime/checkpoints/cancellation.hpp>
#include <cairn/runtime/worlds/world.hpp>
#include <cairn/state/planner.hpp>
#include <cairn/state/staging.hpp>
#include <cairn/storage/checkpoint_writer.hpp>
#include <cairn/storage/storage.hpp>

namespace cairn {

// Must be the same on all ranks, except objects such as planners, and options whose comments allow
// differences. A mismatch error names the ranks.
struct SaveOptions {
  std::optional<World> world;  // free functions only; absent: a world of one rank
  bool no_dist = false;        // this rank alone, whatever `world` is; like DCP's no_dist
  // False: this rank sends no messages, and saves all that it has at a place of its own below the
  // checkpoint's, such as "rank_2_of_8"; like DCP's use_collectives. It replaces only its own
  // earlier part, atomically. A load with this option off, in a world of the same size, reads the
  // part back; `cairn merge` makes one checkpoint of all parts, for any world. Ranks may fail or
  // save other steps without knowing of each other, so give each step a place of its own. `cairn
  // merge` requires that one world saved all parts, that their steps are equal, and that each part
  // has been saved the same number of times.
  //
  // Fails with kAlreadyExists if the checkpoint's place has a checkpoint of all ranks. Throws
  // kInvalidArgument if `step` is not set, or if `planner` or `storage_writer` is. Errors and
  // traces name the rank as rank 0, in a world of its own. Saves with this option off and saves
  // with it on do not wait for each other.
  bool use_collectives = true;
  int coordinator_rank = 0;    // the rank that makes the global plan and publishes the checkpoint
  // The time limit of the whole call. When it expires, the call ends on all ranks as if this rank
  // had cancelled it (see cancellation.hpp), with code kDeadline. The error names the ranks that
  // had not answered. Zero or less: the call ends at once. Ranks may have different deadlines, or
  // none. The time starts after the call has waited for earlier saves; `wait_for_saves` can limit
  // that wait.
  std::optional<std::chrono::milliseconds> deadline;
  std::optional<Cancellation> cancellation;          // may differ between ranks, like the deadline
  std::optional<std::int64_t> step;                  // the trainer's iteration; stored in the checkpoint
  std::map<std::string, std::string> user_metadata;  // stored in the checkpoint: metrics, a git revision
  SavePlannerOptions planning;                       // for Cairn's own planner
  CheckpointWriterOptions writer;                    // for Cairn's own; threads, memory and direct I/O may differ
  std::shared_ptr<SavePlanner> planner;              // replaces Cairn's own planner
  std::shared_ptr<StorageWriter> storage_writer;     // replaces Cairn's own writer
  // An existing directory for the report if this save fails; overrides
  // WorldOptions::failure_directory. May differ between ranks.
  std::string failure_directory;
};

struct LoadOptions {
  std::optional<World> world;  // free functions only; absent: a world of one rank
  bool no_dist = false;
  // False: reads back, without messages, what this rank saved with the same option. Fails with
  // kNotFound if there is no such part, and with kMismatch if a world of another size saved the
  // parts or a checkpoint of all ranks is there. Throws kInvalidArgument if `planner` or
  // `storage_reader` is set.
  bool use_collectives = true;
  int coordinator_rank = 0;
  // As in SaveOptions. If the checkpoint is replaced during the load and has to be read again, the
  // deadline covers both readings.
  std::optional<std::chrono::milliseconds> deadline;
  std::optional<Cancellation> cancellation;  // as in SaveOptions
  LoadPlannerOptions planning;
  CheckpointReaderOptions reader;
  std::shared_ptr<LoadPlanner> planner;
  std::shared_ptr<StorageReader> storage_reader;
  std::string failure_directory;  // as in SaveOptions
};

// Tells `async_save` how to treat an earlier save of its checkpointer that is in flight. Must be
// the same on all ranks.
enum class WhileInFlight : std::uint8_t {
  kWait = 1,  // waits for the earlier save
  // Fails the new save on all ranks, with kPrecondition for each rank that has a save in flight.
  kRefuse,
  // Stages the new save at once, and starts it when the earlier save has ended. Queued saves that
  // have not begun on this rank end as cancelled, on all ranks. If fifteen saves are requested
  // while one runs, the next call waits for the running save.
  kReplace,
};

// Options of an asynchronous save, in addition to SaveOptions. The deadline in SaveOptions starts
// within `async_save`, after the wait for earlier saves. A queued save whose deadline passes is
// cancelled when it reaches the head of the queue. The save uses user-defined planners, writers and
// stagers until it has ended. Only one save at a time uses them.
struct AsyncSaveOptions {
  WhileInFlight while_in_flight = WhileInFlight::kWait;
  StagingOptions staging;
  // Replaces Cairn's own stager. Only `block_on_staging` of `staging` then has an effect.
  std::shared_ptr<AsyncStager> stager;
  // Runs the threads of Cairn's writer at the lowest CPU and I/O priority. Planning and publication
  // keep their priority, because all ranks wait for them.
  bool low_priority = false;
  // Called once when the save has ended, on the save's own thread, or on the caller's thread if no
  // thread can be started. The argument is the exception that `result` would throw, or null if the
  // save succeeded. A failure passed here counts as read. Must not throw or call the checkpointer.
  std::function<void(std::exception_ptr)> on_done;
};

}  // namespace cairn
