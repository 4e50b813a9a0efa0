// One rank's actors behind a plain interface. Starts saves, loads and agreements, and reports each
// outcome once.
//
//   RankRuntime ── supervisor ─┬─ planner      runs planner hooks through the executor
//                              ├─ storage      runs writer and reader hooks through the executor
//                              ├─ coordinator  decides, on the rank that the attempt names
//                              └─ links        sends frames to other ranks and receives theirs
//
// Contains no type of CAF or Protobuf. Internal: users include runtime/cairn.hpp.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/actors/call_progress.hpp>
#include <cairn/actors/options.hpp>
#include <cairn/actors/trainer_executor.hpp>
#include <cairn/base/clock.hpp>
#include <cairn/base/digest.hpp>
#include <cairn/base/failure.hpp>
#include <cairn/base/injection.hpp>
#include <cairn/base/observer.hpp>
#include <cairn/state/planner.hpp>
#include <cairn/storage/storage.hpp>

namespace cairn {

// Identifies a call. `ordinal` counts the calls of one checkpointer on one rank, saves and loads
// together.
struct CallId {
  std::string checkpointer;
  std::uint64_t ordinal = 0;
};

// How an attempt ended. The same on every rank that is alive and reachable.
struct Outcome {
  FailureMap failures;  // empty: success
  Committed committed = Committed::kNo;
  std::string save_id;
  std::string answer{};  // of a successful agreement
  bool ok() const { return failures.empty(); }
};

// The inputs of a call. The pointers must stay valid until `done` is called.
struct Call {
  CallId id;
  std::string checkpoint_id;
  int coordinator_rank = 0;
  Digest options_digest{};                 // over every option that must be equal on all ranks
  // The keys of this rank's Stateful objects; hooks run in the order of the sorted union of all
  // ranks' keys.
  std::vector<std::string> stateful_keys;
  std::optional<std::int64_t> step;
  std::map<std::string, std::string> user_metadata;
  // Deadline for the outcome. When it passes, this rank cancels the call on all ranks. 0 or less
  // cancels at once.
  std::optional<Duration> deadline;
  TrainerExecutor* executor = nullptr;  // runs every hook
  // Directory for the report of a failed call (failure_report.hpp); "": no report. A call that was
  // only cancelled has no report.
  std::string report_directory;
  // Receives the call's progress, and supplies this rank's part for the coordinator. If it is null,
  // this rank's part is unknown.
  std::shared_ptr<CallProgress> progress;
  // Runs the Stateful hooks. Called once on the executor after all ranks have joined, with the
  // agreed order of keys. May throw.
  std::function<void(const std::vector<std::string>& key_order)> begin;
};

struct SaveCall : Call {
  const StateDict* state_dict = nullptr;  // read after `begin` has returned
  SavePlanner* planner = nullptr;
  StorageWriter* writer = nullptr;
};

struct LoadCall : Call {
  StateDict* state_dict = nullptr;
  LoadPlanner* planner = nullptr;
  StorageReader* reader = nullptr;
};

// A decision that one rank makes and all ranks follow, with two messages per rank. `checkpoint_id`
// names the decision and must be the same on all ranks. There is no `begin`, and only the
// coordinator runs a hook. The trace ring keeps only the failures of agreements.
struct AgreeCall : Call {
  std::string text;  // this rank's input; if it exceeds kAgreementTextMax bytes (messages/codec.hpp), the call fails on all ranks
  // Returns the answer, at most kAgreementAnswerMax bytes, from the texts of all ranks, indexed by
  // rank. Runs on the coordinator's executor. May throw.
  std::function<std::string(const std::vector<std::string>& brought)> decide;
};

// A process's actor threads, shared by all its ranks and worlds.
class ActorSystem {
 public:
  // `threads` is the number of scheduler threads; brokers use one more. 0 selects the number of CPU
  // cores, but at least 2 and at most 4.
  static std::shared_ptr<ActorSystem> create(unsigned threads = 0);
  virtual ~ActorSystem() = default;
};

// Makes the actor that carries messages between ranks: see actors/links/links.hpp.
class LinksFactory;

struct RankConfig {
  int rank = 0;
  int world_size = 1;
  std::string incarnation;   // 32 hexadecimal digits, the same on all ranks
  bool one_process = false;  // all ranks live in this process: in-memory stores are allowed
  RuntimeOptions options;
  std::shared_ptr<Observer> observer;  // may be null
  std::string trace_directory;         // directory for files of all events; "": none
  std::shared_ptr<Injector> injector;  // injected faults; null: none
  const Clock* clock = &system_clock();  // for the times in traces; must outlive the runtime and its calls
};

class RankRuntime {
 public:
  RankRuntime(std::shared_ptr<ActorSystem> system, RankConfig config, std::shared_ptr<LinksFactory> links);
  ~RankRuntime();  // as shutdown(0)
  RankRuntime(const RankRuntime&) = delete;
  RankRuntime& operator=(const RankRuntime&) = delete;

  // Starts an attempt and returns the call's ticket. `done` is called exactly once, after the last
  // hook has released the objects that `call` points to. It runs on the thread that released them
  // last: an actor's, the executor's or a writer's. One attempt per checkpointer may run at a time;
  // attempts of different checkpointers run concurrently. Thread-safe.
  std::uint64_t save(SaveCall call, std::function<void(Outcome)> done);
  std::uint64_t load(LoadCall call, std::function<void(Outcome)> done);
  std::uint64_t agree(AgreeCall call, std::function<void(Outcome)> done);

  // Cancels a call on all ranks, with a failure of this rank, unless its checkpoint is already
  // being published. `done` is still called. Returns at once. Does nothing if the call has ended.
  // Thread-safe.
  void cancel(const std::string& checkpointer, std::uint64_t ticket, const std::string& why);

  // Cancels all attempts, stops the actors and closes the links. Returns false if something had not
  // ended by the deadline.
  bool shutdown(std::chrono::milliseconds deadline);

  // Adds a line to the trace. `what` is a name, as in ObservedEvent. Thread-safe.
  void note(std::string_view what);

  // Writes the ring to a file; see tracing/trace_writer.hpp.
  void write_trace(const std::string& path) const;
  // Writes the ring to a file of the standard name in `directory`, which is created if necessary.
  void write_trace_in(const std::string& directory) const;
  // Returns the trace ring as text, oldest event first.
  std::string dump_trace() const;

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace cairn
