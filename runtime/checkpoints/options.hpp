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

#include <cairn/planning/read_once.hpp>
#include <cairn/runtime/checkpoints/cancellation.hpp>
#include <cairn/runtime/worlds/world.hpp>
#include <cairn/state/checkpoint_writer.hpp>
#include <cairn/state/collective.hpp>
#include <cairn/state/planner.hpp>
#include <cairn/state/staging.hpp>
#include <cairn/state/storage.hpp>

namespace cairn {

// All ranks must pass the same values. Only objects such as planners, and options whose comments
// allow it, may differ. A mismatch error names the ranks.
struct SaveOptions {
  std::optional<World> world;  // free functions only; absent: a world of one rank
  bool no_dist = false;        // true: this rank saves alone, whatever `world` is; like DCP's no_dist
  // False: this rank sends no messages. It saves all its data as a separate part, at its own place
  // below `checkpoint_id`, such as "rank_2_of_8"; like DCP's use_collectives. The save atomically
  // replaces this rank's earlier part at that place, and nothing else. To read the part back, load
  // with this option off in a world of the same size. `cairn merge` joins all parts into one
  // checkpoint, which a world of any size can load. No rank notices if another rank fails or saves
  // a different step, so give each step a `checkpoint_id` of its own. `cairn merge` requires that
  // the same World saved all parts, that all parts have the same step, and that each part has been
  // saved at its place the same number of times.
  //
  // Fails with kAlreadyExists if a checkpoint that all ranks saved together exists at
  // `checkpoint_id`. Fails with kInvalidArgument if `step` is not set. Throws kInvalidArgument if
  // `planner` or `storage_writer` is set. In errors and traces of such a save, this rank appears as
  // rank 0 of a world of one rank. A save with this option off does not wait for saves with it on,
  // nor the other way round.
  bool use_collectives = true;
  int coordinator_rank = 0;    // the rank that makes the global plan and publishes the checkpoint
  // The time limit of the whole call. When it expires on a rank, the call ends on all ranks as if
  // that rank had cancelled it (see cancellation.hpp), but with code kDeadline. The error names the
  // ranks that had not answered. Zero or less: the call ends at once. Ranks may have different
  // deadlines, or none. The time starts after the call has waited for earlier saves;
  // `wait_for_saves` can limit that wait.
  std::optional<std::chrono::milliseconds> deadline;
  std::optional<Cancellation> cancellation;          // may differ between ranks, like the deadline
  std::optional<std::int64_t> step;                  // the trainer's iteration; stored in the checkpoint
  std::map<std::string, std::string> user_metadata;  // stored in the checkpoint; for example metrics or a git revision
  // Compares, before anything is written, what several ranks hold: a tensor under one key, or one
  // part of a sharded tensor, unless marked by `per_rank`. If values differ, kWarn logs a warning
  // on the coordinator and adds it to the trace; the lowest rank that holds the tensor or part
  // saves it whole. kError fails the save on all ranks with kMismatch. The text names the first key
  // and the ranks. Each rank reads all its replicas once more to hash them: with 64 bits, no
  // defence against hostile data. A planner of the user's must fill in the hashes
  // (SavePlannerOptions::hash_tensors). With `no_dist`, or without `use_collectives`, ranks do not
  // talk, and nothing is compared.
  CheckReplicas check_replicas = CheckReplicas::kOff;
  SavePlannerOptions planning;                       // for Cairn's own planner
  CheckpointWriterOptions writer;                    // for Cairn's own; threads, memory and direct I/O may differ between ranks
  std::shared_ptr<SavePlanner> planner;              // replaces Cairn's own planner
  std::shared_ptr<StorageWriter> storage_writer;     // replaces Cairn's own writer
  // The directory for the report that is written if this save fails. It must exist. Overrides
  // WorldOptions::failure_directory. May differ between ranks.
  std::string failure_directory;
};

struct LoadOptions {
  std::optional<World> world;  // free functions only; absent: a world of one rank
  bool no_dist = false;
  // False: reads back, without messages, what this rank saved with the same option. Fails with
  // kNotFound if there is no such part. Fails with kMismatch if a world of another size saved the
  // parts, or if a checkpoint that all ranks saved together exists at the checkpoint id. Throws
  // kInvalidArgument if `planner` or `storage_reader` is set.
  bool use_collectives = true;
  int coordinator_rank = 0;
  // As in SaveOptions. If the checkpoint is replaced during the load and has to be read again, the
  // deadline covers both readings.
  std::optional<std::chrono::milliseconds> deadline;
  std::optional<Cancellation> cancellation;  // as in SaveOptions
  // Lets ranks pass on what they read, so that bytes that several ranks need are read from the
  // store once: by one rank of each host (kHost), or by one of all (kWorld). The readers check the
  // bytes. kAuto takes kHost for an object store or a directory that is on no local file system,
  // and kOff otherwise, because ranks of a host share its page cache. Above 64 ranks kWorld means
  // kHost. The choice is in the trace. Bytes move past the control connections, in shared memory
  // within a host and TCP between hosts. A rank that gets nothing reads for itself, with a warning.
  // Compressed values, and those of PyTorch's own files, are shared up to 64 MiB of stored bytes
  // each. No effect with a user-defined planner or reader, nor with `verify_first`.
  ReadOnce read_once = ReadOnce::kOff;
  // A group of the ranks that load the same tensors or shards as this rank: for a replicated model
  // all ranks, with hybrid sharding the replicas. Give one on all ranks of the world or on none.
  // The ranks of a group then divide the reading of each contiguous tensor of 1 MiB or more by
  // rows, and the group passes the rows on: by NCCL between devices, by Gloo in host memory. Other
  // values are read as `read_once` says. If the load of any rank fails, nothing is passed on.
  // Nothing else may use the group during the load. Its timeout bounds the passing on, instead of
  // `deadline` and `cancellation`, and must be shorter than RuntimeOptions::join_deadline. Fails
  // with kMismatch, after reading, if ranks of a group load into different tensors or have
  // different groups. No effect with a user-defined planner or reader, with `verify_first`,
  // `no_dist` or without `use_collectives`, nor in `load_by_keys`.
  std::shared_ptr<const Collective> replica_group;
  LoadPlannerOptions planning;
  CheckpointReaderOptions reader;
  std::shared_ptr<LoadPlanner> planner;
  std::shared_ptr<StorageReader> storage_reader;
  std::string failure_directory;  // as in SaveOptions
};

// Tells `async_save` what to do if an earlier asynchronous save of the same checkpointer is still
// in flight. Must be the same on all ranks.
enum class WhileInFlight : std::uint8_t {
  kWait = 1,  // waits for the earlier save
  // If any rank has a save in flight, the new save fails on all ranks. The failure map has
  // kPrecondition for each rank with a save in flight.
  kRefuse,
  // Stages the new save at once, and starts it when the earlier save has ended. A queued save that
  // has not begun on this rank is cancelled, and so ends on all ranks. After fifteen such calls
  // during one running save, the next call waits for the running save.
  kReplace,
};

// Options of an asynchronous save, in addition to SaveOptions. The deadline in SaveOptions starts
// within `async_save`, after the wait for earlier saves. If the deadline of a queued save passes,
// the save is cancelled when it reaches the head of the queue. The save uses user-defined planners,
// writers and stagers until it has ended. No two saves use these objects at the same time.
struct AsyncSaveOptions {
  WhileInFlight while_in_flight = WhileInFlight::kWait;
  StagingOptions staging;
  // Replaces Cairn's own stager. If set, `block_on_staging` is the only member of `staging` that
  // has an effect.
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
