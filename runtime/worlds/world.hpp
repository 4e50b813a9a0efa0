// The ranks that save and load together.
//
// A World is a handle: copies share one world, which ends with the last copy or with `shutdown`.
// Creating a world blocks until all ranks have joined, except with `from_addresses`. After that,
// Cairn does not use the trainer's own communication. Thread-safe. In a forked child process, the
// destructor of a handle does nothing.
//
// A rank that is connected to all others, as a coordinator is, has two connections to each. A world
// of several processes raises the process's soft limit of file descriptors (RLIMIT_NOFILE) to the
// number that its connections need. Throws kPrecondition if the hard limit is too low.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include <cairn/base/failure.hpp>
#include <cairn/runtime/observation/progress.hpp>
#include <cairn/runtime/worlds/world_options.hpp>

namespace c10d {
class Store;
}

namespace cairn {

class RankRuntime;

class World {
 public:
  // Creates a world of the ranks that torchrun, mpirun, srun, cairn-launch or another launcher has
  // started (docs/launching.md). Throws kInvalidArgument if variables are missing, malformed or
  // contradictory; kDeadline, naming the ranks that did not join; kMismatch if ranks differ in the
  // world's size; kPermission if they differ in the secret; kUnavailable if the store fails.
  //
  // Rank 0 hosts the store at MASTER_PORT unless it already exists. A trainer that creates its own
  // store there must set `multiTenant`, or pass its store to `from_store`.
  static World from_environment(const WorldOptions& options = {});

  // Creates a world through the trainer's own store, in which Cairn's keys have a prefix. Every
  // rank must call this the same number of times.
  static World from_store(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size, const WorldOptions& options = {});

  // Creates a world from known addresses: `addresses[rank]` is the "host:port" of that rank's
  // listener. All ranks must pass the same addresses, in the same order, and the same `job_id`.
  // Never reuse a job id, not even for a restart of the same job, because it makes the names of
  // saves unique. Returns at once. The first save or load reports ranks that do not connect, host
  // names that cannot be resolved, and ranks with other addresses, within
  // `RuntimeOptions::connect_deadline`.
  static World from_addresses(int rank, const std::vector<std::string>& addresses, const std::string& job_id,
                              const WorldOptions& options = {});

  // Creates a world whose ranks all live in this process. Each element, indexed by rank, is for a
  // thread of its own.
  static std::vector<World> in_process(int world_size, const WorldOptions& options = {});

  // Creates a world of one rank, without a network.
  static World single(const WorldOptions& options = {});

  int rank() const;
  int size() const;
  int local_rank() const;                  // see WorldOptions::local_rank
  const std::string& incarnation() const;  // 32 hexadecimal digits that identify this instance of the world
  bool one_process() const;                // whether all ranks live in this process
  bool secured() const;                    // whether ranks use TLS with the job's secret, or all live in this process

  // --- after the loss of ranks ---

  // Returns, in ascending order, the ranks that `failures` does not list as lost or silent. They
  // can continue without the others. `failures` is the map of a save or load in this world. Ranks
  // with the same map get the same result.
  std::vector<int> survivors(const FailureMap& failures) const;

  // Creates a world of the surviving ranks, without a restart. `survivors[new_rank]` is that
  // process's rank in this world. All survivors must call `rejoin`, with the same list. The call
  // first shuts this world down, as its last handle would. The new world has the same options and a
  // new incarnation. Checkpointers belong to the old world: make new ones.
  //
  // The ranks meet at the addresses where they listened before, without a store. Processes that are
  // not in the list cannot join. Blocks until all survivors have joined, for at most
  // assemble_deadline. Throws kInvalidArgument if the list is malformed or lacks this rank. Throws
  // kPrecondition if this world was rejoined already, or in a forked child. Throws kDeadline with
  // the new numbers of the ranks that did not join; then `rejoin` may be called again.
  World rejoin(const std::vector<int>& survivors) const;

  // Cancels running saves and loads, closes the connections, and waits until listeners have
  // received all events. Returns false if something had not ended by the deadline. Idempotent.
  // Later saves and loads throw kPrecondition.
  bool shutdown(std::chrono::milliseconds deadline) const;

  // Returns whether WorldOptions::backends lists a backend for this device type ("cpu", "cuda"), or
  // is empty.
  bool has_backend_for(const std::string& device_type) const;
  std::chrono::milliseconds shutdown_deadline() const;  // from the options
  ShowProgress show_progress() const;                   // from the options

  // Returns the last messages between the actors of this rank, as text, oldest first.
  std::string dump_trace() const;
  // Writes the same messages to a file for `cairn trace`, replacing an existing one. `cairn trace`
  // finds files whose names end in ".trace". Throws kNotFound, kPermission, kNoSpace, kUnavailable.
  void write_trace(const std::string& path) const;

  // Returns the actors of this rank. This function and those below are for Cairn's own use.
  RankRuntime& runtime() const;
  // Creates a world of this rank alone, with the same options. It writes no failure reports, unless
  // a call asks for one, and shows progress if this is rank 0.
  World alone() const;
  // Returns the directory for the report of a failed call, or "" for no report. `wanted` is the
  // caller's choice, or "". `place` is the location of the checkpoint, "" if it has none.
  std::string report_directory(const std::string& wanted, const std::string& place) const;
  void claim_checkpointer(const std::string& name) const;
  void release_checkpointer(const std::string& name) const noexcept;

 private:
  struct Implementation;
  explicit World(std::shared_ptr<Implementation> implementation) : implementation_(std::move(implementation)) {}
  std::shared_ptr<Implementation> implementation_;
};

}  // namespace cairn
