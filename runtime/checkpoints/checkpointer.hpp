// Saves and loads checkpoints in one world. A trainer keeps a Checkpointer for as long as it
// trains.
//
// Every rank of the world must make the same calls in the same order, each on its own thread. A
// call blocks until its outcome is known on this rank. Meanwhile the hooks of planners, writers,
// readers and Stateful objects run on the calling thread. If a call fails after it has begun, every
// rank that is alive throws CheckpointException with the same failure map.
//
// A call returns on each rank as soon as that rank has the outcome. If the coordinator is lost
// before all ranks have the outcome, each rank without it asks the other ranks for it. A rank that
// has exited or called `World::shutdown` cannot answer, and counts as lost. The ranks may then
// throw different failure maps, but `CheckpointException::committed()` is correct. To get the same
// failure map on every rank, synchronize the ranks before they exit.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <cairn/runtime/checkpoints/async_handle.hpp>
#include <cairn/runtime/checkpoints/options.hpp>
#include <cairn/runtime/worlds/world.hpp>
#include <cairn/state/planner.hpp>
#include <cairn/state/state_dict.hpp>

namespace cairn {

// A world may have several checkpointers. Each has a name, the same on all ranks, and makes one
// call at a time. Reusing one checkpointer makes later saves cheaper, because it keeps plans,
// threads and staging memory. Thread-safe, but a second call while one is running throws
// kPrecondition.
class Checkpointer {
 public:
  // Throws kAlreadyExists if the world already has a checkpointer of this name, and
  // kInvalidArgument if the name is empty.
  explicit Checkpointer(World world, std::string name = "main");
  // Waits for asynchronous saves in flight, for at most WorldOptions::shutdown_deadline. Then
  // cancels the saves that are still running, and waits for at most the same time again. Logs
  // failures that nobody has read.
  ~Checkpointer();
  Checkpointer(Checkpointer&&) noexcept;
  Checkpointer& operator=(Checkpointer&&) noexcept;

  // Saves `state_dict` under `checkpoint_id`, a path or a URL of a known scheme. When `save`
  // returns, the checkpoint is complete, durable (unless sync is off), and readable by PyTorch. In
  // `tiered:` it is durable in the near tier; from `s3:` PyTorch reads a copy in a directory. If
  // `save` throws, the previous checkpoint under `checkpoint_id` is intact, unless the new one was
  // published before the error.
  void save(const StateDict& state_dict, const std::string& checkpoint_id, const SaveOptions& options = {});

  // Saves in the background, on a separate thread: see async_handle.hpp. Returns when the trainer
  // may change the state, or earlier with `block_on_staging` off. Waits for all ranks, because the
  // Stateful hooks of every rank run within the call. Saves are published in the order of the
  // calls. `save` and `load` wait for saves in flight. If this rank finds an error before the save
  // begins, throws it from this call. Throws kPrecondition if the world was shut down, if another
  // call is running, if this process was forked after the checkpointer was made, or if the world's
  // backends lack "cpu". The handle reports the failures of a save that has begun.
  //
  // If nobody has read the failure of an earlier asynchronous save, throws that failure once the
  // new save has begun. The new save continues. `save` throws such a failure after it has saved
  // successfully.
  AsyncSaveResponse async_save(const StateDict& state_dict, const std::string& checkpoint_id, const SaveOptions& options = {},
                               const AsyncSaveOptions& async_options = {});
  // Call this before the first save: it allocates and pins the staging memory for states like
  // `state_dict`. Calls `state_dict()` of Stateful objects in the order of their keys. If those
  // calls communicate, all ranks must call `prepare`. If the state will be streamed
  // (StagingOptions::stream), allocates the writer's ring buffer instead. If `stream` and
  // `cache_staged_state_dict` are both off, allocates nothing.
  void prepare(const StateDict& state_dict, const AsyncSaveOptions& async_options, const SaveOptions& options = {});
  // Frees the memory that staging and Cairn's own writer keep between saves. Memory in use is freed
  // when it is no longer used.
  void release();
  // Waits until no save is in flight. Returns false if the deadline passes first. Throws a failure
  // that nobody has read.
  bool wait_for_saves(std::optional<std::chrono::milliseconds> deadline = std::nullopt);

  // Loads into `state_dict`, in place: tensors keep their memory, whatever their layout; other
  // leaves are replaced. If anything is missing or does not fit, throws one error that lists
  // everything wrong, before a byte is changed. If reading fails halfway, the contents of the
  // destinations are unspecified. With `reader.verify_first`, each rank checks all bytes that it
  // needs before it changes any. Calls `load_state_dict` of Stateful objects after every rank has
  // loaded. If a `load_state_dict` throws, the call fails only on the rank where it threw. Returns
  // the report of the planner.
  LoadReport load(StateDict& state_dict, const std::string& checkpoint_id, const LoadOptions& options = {});

  // On every rank, loads the values stored under these key prefixes ("model", "optimizer.state"),
  // nested as they were saved. Without prefixes, loads everything. Tensors are whole, on the CPU.
  // Leaves out opaque values (see Opaque) that `planning.keep_opaque` does not name. Rank 0 logs a
  // warning with their names and classes. Fails with kNotFound if a prefix matches nothing. Throws
  // kInvalidArgument if a planner is set.
  StateDict load_by_keys(const std::string& checkpoint_id, const std::vector<std::string>& prefixes = {},
                         const LoadOptions& options = {});

  const World& world() const;

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace cairn
