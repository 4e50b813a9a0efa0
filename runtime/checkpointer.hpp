// Saves and loads of one world: what a trainer keeps for as long as it trains.
//
// Every rank of the world makes the same calls in the same order, each on its own thread. A call blocks until the outcome is known
// on this rank; the hooks of planners, writers, readers and Stateful objects run on the calling thread meanwhile. When a call
// fails, it throws CheckpointException on every rank that is alive, with the same failure map.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <cairn/planning/metadata.hpp>
#include <cairn/runtime/world.hpp>
#include <cairn/state/planner.hpp>
#include <cairn/state/state_dict.hpp>
#include <cairn/storage/checkpoint_writer.hpp>
#include <cairn/storage/storage.hpp>

namespace cairn {

// The same on all ranks, except the objects. A disagreement is an error that names the ranks.
struct SaveOptions {
  std::optional<World> world;                        // free functions only; absent: a world of one
  bool no_dist = false;                              // this rank alone, whatever `world` says: after DCP's no_dist
  int coordinator_rank = 0;                          // who plans for all and publishes
  std::optional<std::int64_t> step;                  // the trainer's iteration, kept in the checkpoint
  std::map<std::string, std::string> user_metadata;  // kept in the checkpoint; metrics, a git revision
  SavePlannerOptions planning;                       // of Cairn's own planner
  CheckpointWriterOptions writer;                    // of Cairn's own writer
  std::shared_ptr<SavePlanner> planner;              // replaces Cairn's own
  std::shared_ptr<StorageWriter> storage_writer;     // replaces Cairn's own
};

struct LoadOptions {
  std::optional<World> world;  // free functions only; absent: a world of one
  bool no_dist = false;
  int coordinator_rank = 0;
  LoadPlannerOptions planning;
  CheckpointReaderOptions reader;
  std::shared_ptr<LoadPlanner> planner;
  std::shared_ptr<StorageReader> storage_reader;
};

// Several may live in one world; each has a name, the same on all ranks, and makes one call at a time. Keeping one over many saves
// makes each later save cheaper: plans, threads and staging memory are kept. Thread-safe, but a second call while one is running
// throws kPrecondition.
class Checkpointer {
 public:
  // Throws kAlreadyExists if a checkpointer of this name lives in the world already.
  explicit Checkpointer(World world, std::string name = "main");
  ~Checkpointer();
  Checkpointer(Checkpointer&&) noexcept;
  Checkpointer& operator=(Checkpointer&&) noexcept;

  // Saves `state_dict` under `checkpoint_id`, a path or a URL of a known scheme. Once it returns, the checkpoint is complete,
  // durable (unless sync is off), and readable by PyTorch. After an exception the checkpoint that was there before is whole.
  void save(const StateDict& state_dict, const std::string& checkpoint_id, const SaveOptions& options = {});

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
