// The ranks that save and load together.
//
// A World is a handle: copies share one world, which ends with the last copy or with `shutdown`.
// Creating a world blocks until all ranks have joined, except with `from_addresses`. After that,
// Cairn does not use the trainer's own communication. Thread-safe. In a forked child process, the
// destructor of a handle does nothing.
//
// A coordinator is connected to all other ranks, with two connections to each. A world of several
// processes raises the process's soft limit of file descriptors (RLIMIT_NOFILE) to the number that
// its connections need. If the hard limit is too low, creating the world throws kPrecondition.
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
class CheckpointReader;
enum class ReadOnce : std::uint8_t;

class World {
 public:
  // Creates a world of the ranks that torchrun, mpirun, srun, cairn-launch or another launcher has
  // started (docs/launching.md). Throws kInvalidArgument if variables are missing, malformed or
  // contradictory; kDeadline, naming the ranks that did not join; kMismatch if ranks differ in the
  // world's size; kPermission if they differ in the secret; kUnavailable if the store fails.
  //
  // The ranks meet in a TCPStore at MASTER_ADDR:MASTER_PORT. Rank 0 hosts it unless it exists
  // already. A trainer that creates its own store at this port must set `multiTenant`, or pass its
  // store to `from_store`.
  static World from_environment(const WorldOptions& options = {});

  // Creates a world of ranks that meet in the trainer's own store. Cairn's keys there begin with
  // "cairn". Every rank must call this function the same number of times.
  static World from_store(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size, const WorldOptions& options = {});

  // Creates a world from known addresses: `addresses[rank]` is the "host:port" of that rank's
  // listener. All ranks must pass the same addresses, in the same order, and the same `job_id`.
  // Never reuse a job id, not even for a restart of the same job, because it makes the names of
  // saves unique. Returns at once. The first save or load reports ranks that do not connect, host
  // names that cannot be resolved, and ranks with other addresses, within
  // `RuntimeOptions::connect_deadline`.
  static World from_addresses(int rank, const std::vector<std::string>& addresses, const std::string& job_id,
                              const WorldOptions& options = {});

  // Creates a world whose ranks all live in this process. Returns the handles by rank. Use each on
  // a thread of its own.
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

  // Returns, in ascending order, the ranks that `failures` does not list as lost or silent. These
  // ranks can continue in a new world: see `rejoin`. `failures` is the map of a save or load in
  // this world. Ranks with the same map get the same result.
  std::vector<int> survivors(const FailureMap& failures) const;

  // Creates a world of the surviving ranks, without a restart. `survivors[i]` is the rank, in this
  // world, of the process that gets rank i in the new world. All survivors must call `rejoin`, with
  // the same list. The call first shuts this world down, as the destructor of its last handle
  // would. The new world has the same options and a new incarnation. Checkpointers belong to the
  // old world: make new ones.
  //
  // The ranks meet at the addresses where they listened before, without a store. Processes whose
  // rank is not in the list cannot join. Blocks until all survivors have joined, for at most
  // assemble_deadline. Throws kInvalidArgument if the list is malformed or lacks this rank. Throws
  // kPrecondition if this world was rejoined already, or in a forked child. Throws kDeadline if not
  // all survivors have joined in time, and names the missing ones by their ranks in the new world.
  // `rejoin` may then be called again.
  World rejoin(const std::vector<int>& survivors) const;

  // Cancels running saves and loads, closes the connections, and waits until all CallListeners
  // (WorldOptions::listeners) have received all events. Returns false if, at the deadline, an actor
  // of this rank had not stopped or a listener had not received all events. Idempotent. Later saves
  // and loads throw kPrecondition.
  bool shutdown(std::chrono::milliseconds deadline) const;

  // Returns true if WorldOptions::backends is empty, or lists a backend for this device type
  // ("cpu", "cuda").
  bool has_backend_for(const std::string& device_type) const;
  std::chrono::milliseconds shutdown_deadline() const;  // from the options
  ShowProgress show_progress() const;                   // from the options

  // Returns the latest messages between the actors of this rank, as text, oldest first.
  std::string dump_trace() const;
  // Writes the same messages to a file for `cairn trace`. Replaces an existing file. `cairn trace`
  // finds files whose names end in ".trace". Throws kNotFound, kPermission, kNoSpace, kUnavailable.
  void write_trace(const std::string& path) const;

  // Returns the actors of this rank. This function and those below are for Cairn's own use.
  RankRuntime& runtime() const;
  // Lets the reader share what the ranks of this world read. This world must outlive its loads.
  void share_reads(CheckpointReader& reader, ReadOnce wanted) const;
  // Creates a world of this rank alone, with the same options. The new world writes a failure
  // report only if a call asks for one. It may show progress only if `rank()` of this world is 0.
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
