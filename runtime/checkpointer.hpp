// Saves and loads of one world: what a trainer keeps for as long as it trains.
//
// Every rank of the world makes the same calls in the same order, each on its own thread. A call blocks until the outcome is known
// on this rank; the hooks of planners, writers, readers and Stateful objects run on the calling thread meanwhile. When a call
// fails, it throws CheckpointException on every rank that is alive, with the same failure map.
//
// A call returns on each rank as soon as that rank has its outcome. Whoever leaves then, by the end of its process or by
// `World::shutdown`, takes it along: should the coordinator be lost just then, a rank that has not heard the outcome asks the others, and
// those that have left are lost ones to it. What `committed` says is true all the same. A trainer that wants one map on all ranks to
// the last lets its ranks wait for each other before they end.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <cairn/planning/metadata.hpp>
#include <cairn/runtime/async_save.hpp>
#include <cairn/runtime/cancellation.hpp>
#include <cairn/runtime/world.hpp>
#include <cairn/state/planner.hpp>
#include <cairn/state/state_dict.hpp>
#include <cairn/storage/checkpoint_writer.hpp>
#include <cairn/storage/storage.hpp>

namespace cairn {

// The same on all ranks, except the objects. A disagreement is an error that names the ranks.
struct SaveOptions {
  std::optional<World> world;  // free functions only; absent: a world of one
  bool no_dist = false;        // this rank alone, whatever `world` says: after DCP's no_dist
  int coordinator_rank = 0;    // who plans for all and publishes
  // For the whole call, until its outcome: then the call ends on all ranks as if this one had cancelled it (see cancellation.hpp), with
  // code kDeadline, naming whom it waited for. Zero or less: at once. This rank's own: other ranks may have another one, or none. The call
  // begins when the asynchronous saves that this checkpointer has in flight have ended: `wait_for_saves` has a deadline for those.
  std::optional<std::chrono::milliseconds> deadline;
  std::optional<Cancellation> cancellation;          // this rank's own, as the deadline is
  std::optional<std::int64_t> step;                  // the trainer's iteration, kept in the checkpoint
  std::map<std::string, std::string> user_metadata;  // kept in the checkpoint; metrics, a git revision
  SavePlannerOptions planning;                       // of Cairn's own planner
  CheckpointWriterOptions writer;                    // of Cairn's own writer
  std::shared_ptr<SavePlanner> planner;              // replaces Cairn's own
  std::shared_ptr<StorageWriter> storage_writer;     // replaces Cairn's own
  // Where a report is left if this save fails, in place of WorldOptions::failure_directory: a directory that is there. This rank's own.
  std::string failure_directory;
};

struct LoadOptions {
  std::optional<World> world;  // free functions only; absent: a world of one
  bool no_dist = false;
  int coordinator_rank = 0;
  // As in SaveOptions; for both readings together, where a checkpoint is replaced while it is read.
  std::optional<std::chrono::milliseconds> deadline;
  std::optional<Cancellation> cancellation;  // as in SaveOptions
  LoadPlannerOptions planning;
  CheckpointReaderOptions reader;
  std::shared_ptr<LoadPlanner> planner;
  std::shared_ptr<StorageReader> storage_reader;
  std::string failure_directory;  // as in SaveOptions
};

// Several may live in one world; each has a name, the same on all ranks, and makes one call at a time. Keeping one over many saves
// makes each later save cheaper: plans, threads and staging memory are kept. Thread-safe, but a second call while one is running
// throws kPrecondition.
class Checkpointer {
 public:
  // Throws kAlreadyExists if a checkpointer of this name lives in the world already.
  explicit Checkpointer(World world, std::string name = "main");
  // Waits for asynchronous saves in flight, as long as WorldOptions::shutdown_deadline says; then cancels them. What has failed, and
  // nobody has read, is logged.
  ~Checkpointer();
  Checkpointer(Checkpointer&&) noexcept;
  Checkpointer& operator=(Checkpointer&&) noexcept;

  // Saves `state_dict` under `checkpoint_id`, a path or a URL of a known scheme. Once it returns, the checkpoint is complete,
  // durable (unless sync is off), and readable by PyTorch. After an exception the checkpoint that was there before is whole.
  void save(const StateDict& state_dict, const std::string& checkpoint_id, const SaveOptions& options = {});

  // The same in the background: returns once the state may be changed (unless staging overlaps), and gives the rest to a thread of the
  // save's own: see async_save.hpp. Waits for all ranks, as their Stateful hooks run within the call. Saves are published in the order
  // of the calls; `save` and `load` wait for those in flight. Throws what this rank finds by itself, and before anything has begun:
  // kPrecondition after the world was shut down, in a process that was forked off after the checkpointer was made, or for a world
  // whose backends leave out "cpu". All other failures come through the handle.
  //
  // An earlier failure that nobody has read is thrown here, as by `save`, when the new save has been staged; that goes on.
  AsyncSaveResponse async_save(const StateDict& state_dict, const std::string& checkpoint_id, const SaveOptions& options = {},
                               const AsyncSaveOptions& async_options = {});
  // Gets, and pins, the staging memory for such a state ahead of the first save. Stateful objects in it are asked, in the order of
  // their keys: on all ranks, if they need each other. Without `cache_staged_state_dict` nothing can be kept, and nothing is done; where
  // the state is streamed, the ring is made, for saves with these options.
  void prepare(const StateDict& state_dict, const AsyncSaveOptions& async_options, const SaveOptions& options = {});
  // Gives back the memory that staging, and Cairn's own writer, keep between saves, once no save uses it.
  void release();
  // Waits until no save is in flight, returns false if one is at the deadline. Throws a failure that nobody has read.
  bool wait_for_saves(std::optional<std::chrono::milliseconds> deadline = std::nullopt);

  // Loads into `state_dict`, in place: tensors keep their memory, whatever their layout; other leaves are replaced. Everything that
  // is missing or does not fit is reported at once, before a byte is changed. After a failure in the middle of reading, destinations
  // are unspecified, unless `reader.verify_first`. Stateful objects get `load_state_dict` once every rank has loaded: one that throws
  // fails the call on its own rank alone.
  void load(StateDict& state_dict, const std::string& checkpoint_id, const LoadOptions& options = {});

  // Builds what is stored under these key prefixes ("model", "optimizer.state"), nested as saved, as whole CPU tensors, on every
  // rank. No prefixes: everything. Throws kNotFound, through the failure map, for a prefix that matches nothing.
  StateDict load_by_keys(const std::string& checkpoint_id, const std::vector<std::string>& prefixes = {},
                         const LoadOptions& options = {});

  const World& world() const;

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace cairn
