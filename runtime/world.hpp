// The ranks that save and load together.
//
// A World is a handle: copies share one world, which ends with the last of them or with `shutdown`. Making one blocks until all
// ranks are there; after that nothing of the trainer's own communication is used. Thread-safe. In a forked child process, the
// destructor of a handle does nothing.
//
// A rank that is linked to all others, as a coordinator is, has two connections to each. Making a world of several processes raises the
// process's soft limit of file descriptors (RLIMIT_NOFILE) to what the connections need; kPrecondition if the hard limit is too
// low.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include <cairn/actors/options.hpp>
#include <cairn/base/failure.hpp>
#include <cairn/base/observer.hpp>
#include <cairn/runtime/call_listener.hpp>

namespace c10d {
class Store;
}

namespace cairn {

class RankRuntime;

// How rank 0 shows people how far saves and loads are.
enum class ShowProgress : std::uint8_t {
  kOff = 1,
  // In the log (base/log.hpp), a line of level info for each phase. CAIRN_LOG=info or `set_log_level` brings them out.
  kLog,
  // Where standard error is a terminal, and lines of the log go there: one line that is redrawn, five times a second, with phase,
  // percent, rate, slowest rank and time left. For programs that write whole lines there, if anything: Cairn's own log lines go above it,
  // those of others beside it. Elsewhere as kLog.
  kTerminal,
};

// Waits, those of `runtime` included, that are longer than a year count as a year.
struct WorldOptions {
  RuntimeOptions runtime;
  // The address that this rank listens at, and is reached at by the others. Empty: loopback; with `from_addresses` the host of this
  // rank's own address, and there it may also be a wildcard ("0.0.0.0"). Beyond loopback a secret is needed: without one kPrecondition.
  std::string bind_address;
  // What the ranks of this job know and nobody else: with it they talk over TLS 1.3, and to each other only. Either the bytes
  // themselves, 16 or more that nobody can guess, or a file of mode 0600 that holds them (white space at its end does not count);
  // the same on all ranks. Both empty: CAIRN_SECRET_FILE, then CAIRN_SECRET in the environment, of which cairn-launch sets the first.
  // Without any secret ranks talk in the clear, over loopback addresses only, where whoever reaches the port may talk to them.
  // kPermission for a file that others may read, kInvalidArgument for a secret that is too short.
  std::string secret;
  std::string secret_file;
  std::chrono::milliseconds assemble_deadline{std::chrono::minutes(5)};   // until every rank of the world has come
  std::chrono::milliseconds shutdown_deadline{std::chrono::seconds(30)};  // of the shutdown that the last handle does
  unsigned actor_threads = 0;                                             // 0: as many as useful
  // What the trainer's own ranks communicate by, as PyTorch's init_process_group takes it: "cpu:gloo,cuda:nccl", "gloo", "nccl" (for
  // "cuda" alone). Cairn uses none of it; it is for what depends on it: an asynchronous save needs one for "cpu". Empty: not known,
  // and nothing is refused.
  std::string backends;
  ShowProgress show_progress = ShowProgress::kTerminal;
  std::shared_ptr<Observer> observer;  // sees every message; may be null
  // Are told when calls begin, go on and end: call_listener.hpp. CAIRN_METRICS_DIR and CAIRN_METRICS_PORT add one: metrics.hpp.
  std::vector<std::shared_ptr<CallListener>> listeners;
  // Where each rank writes every message, hook and change of state as it happens (docs/tracing.md), for `cairn trace` to read: a directory
  // that all ranks may share; at most 256 MiB a rank, the oldest go first. Empty: what CAIRN_TRACE names; if that is empty too, nowhere.
  std::string trace_directory;
  // What state machines are given and decide is written too, so that `cairn trace check` can go through it again: the contents of all
  // messages between ranks, no data of tensors; at most 4 GiB a rank. CAIRN_TRACE=full:DIR does the same, CAIRN_TRACE=full with DIR
  // "cairn-trace".
  bool trace_contents = false;
  // Each time the process gets this signal, say SIGUSR2, every rank in it writes the trace of what it did last to `trace_signal_directory`
  // (made if need be; empty: the working directory), as a file that `cairn trace` finds, in place of the one before. 0: what
  // CAIRN_TRACE_SIGNAL says, "USR2" or "USR2:DIR"; without that nothing is done. A signal that the program handles itself is left to it,
  // with a warning.
  int trace_signal = 0;
  std::string trace_signal_directory;
  // A save or load that fails leaves `failure-<save id>/` in this directory, with report.txt and the last events of at most eight
  // ranks. Empty: saves by Cairn's own writer leave it in the directory that holds the checkpoint. The directory must exist. The
  // newest 16 reports stay; older ones are removed. Calls that were only cancelled leave no report.
  std::string failure_directory;
  bool failure_reports = true;
};

class World {
 public:
  // From RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, as torchrun and cairn-launch set them. Throws kInvalidArgument
  // naming a variable that is missing or malformed, kDeadline naming the ranks that did not come, kMismatch for ranks that differ
  // in the world's size, kPermission for ranks that differ in the secret. Rank 0 hosts the store at MASTER_PORT unless somebody does
  // already; a trainer that makes a store of its own there sets `multiTenant`, or hands its store to `from_store`.
  static World from_environment(const WorldOptions& options = {});

  // Through a store that the trainer has; keys are kept apart by a prefix. Every rank calls this equally often.
  static World from_store(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size, const WorldOptions& options = {});

  // Makes a world from known addresses: `addresses[r]` is "host:port" of rank r's listener. `job_id` is the same on all ranks and
  // never used again, not even by a restart of the same job: it makes the names of what is saved unique. Returns at once. The
  // first save or load reports ranks that do not come, and host names that cannot be resolved, within
  // `RuntimeOptions::connect_deadline`.
  static World from_addresses(int rank, const std::vector<std::string>& addresses, const std::string& job_id,
                              const WorldOptions& options = {});

  // All ranks in this process, each for a thread of its own. Index = rank.
  static std::vector<World> in_process(int world_size, const WorldOptions& options = {});

  // One rank, no network.
  static World single(const WorldOptions& options = {});

  int rank() const;
  int size() const;
  int local_rank() const;                  // of LOCAL_RANK; `rank()` where that is not known
  const std::string& incarnation() const;  // 32 hexadecimal digits: this life of the world
  bool one_process() const;                // all ranks live in this process
  bool secured() const;                    // ranks talk over TLS with the job's secret, or within this process

  // --- after ranks were lost ------------------------------------------------------------------------------------------------

  // The ranks that `failures`, of a save or load in this world, does not name as lost or silent, ascending: who may go on without the
  // rest. Every rank that was told the same map gets the same answer.
  std::vector<int> survivors(const FailureMap& failures) const;

  // The world of those who go on, without a restart: `survivors[r]` is the rank in this world of who is rank r there. All of them
  // call it, with the same list. This world is shut down first, as by the last handle; the new one has its options and an
  // incarnation of its own. Checkpointers stay with the world that they were made for: make new ones.
  //
  // The ranks meet where they have listened before: no store is needed, and nobody who is not in the list. Blocks until all survivors
  // have come, or assemble_deadline. Throws kInvalidArgument for a list that is none or lacks this rank, kDeadline naming those that did
  // not come, as they would be called in the new world, kPrecondition if this world has been rejoined from already. After kDeadline it
  // may be called again.
  World rejoin(const std::vector<int>& survivors) const;

  // Ends running saves and loads as cancelled, closes the connections, and waits until listeners have been told. Returns false if something had
  // not ended by the deadline.
  // Idempotent; later saves and loads throw kPrecondition.
  bool shutdown(std::chrono::milliseconds deadline) const;

  // Whether WorldOptions::backends has one for this type of device ("cpu", "cuda"), or is empty.
  bool has_backend_for(const std::string& device_type) const;
  std::chrono::milliseconds shutdown_deadline() const;  // of the options
  ShowProgress show_progress() const;                   // too

  // The last messages between the actors of this rank, as text, oldest first.
  std::string dump_trace() const;
  // The same as a file for `cairn trace`, written at once; one that is there is replaced. A name that ends in ".trace" is found by it.
  // Throws kNotFound, kPermission, kNoSpace, kUnavailable.
  void write_trace(const std::string& path) const;

  // For Cairn's own use: the actors of this rank, and the names that are taken by checkpointers.
  RankRuntime& runtime() const;
  // Where a failed call leaves its report, "": nowhere. `wanted`: by the caller, "" if it wants nothing; `place`: of the checkpoint, "" if
  // that has none.
  std::string report_directory(const std::string& wanted, const std::string& place) const;
  void claim_checkpointer(const std::string& name) const;
  void release_checkpointer(const std::string& name) const noexcept;

 private:
  struct Implementation;
  explicit World(std::shared_ptr<Implementation> implementation) : implementation_(std::move(implementation)) {}
  std::shared_ptr<Implementation> implementation_;
};

}  // namespace cairn
