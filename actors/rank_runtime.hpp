// One rank's actors behind a plain interface: starts a save, a load or an agreement, and reports its outcome once.
//
//   RankRuntime ── supervisor ─┬─ planner      runs planner hooks through the executor
//                              ├─ storage      runs writer and reader hooks through the executor
//                              ├─ coordinator  decides, on the rank that the attempt names
//                              └─ links        frames to and from other ranks
//
// No type of CAF or Protobuf appears here. Internal: users see runtime/cairn.hpp.
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

// What all ranks must agree on for one call. `ordinal` counts the calls of one checkpointer on one rank, saves and loads alike.
struct CallId {
  std::string checkpointer;
  std::uint64_t ordinal = 0;
};

// How an attempt ended: the same on every rank that is alive and can be reached.
struct Outcome {
  FailureMap failures;  // empty: it succeeded
  Committed committed = Committed::kNo;
  std::string save_id;
  std::string answer{};  // of an agreement that succeeded
  bool ok() const { return failures.empty(); }
};

// What a call brings along. The pointers stay valid until `done` was called.
struct Call {
  CallId id;
  std::string checkpoint_id;
  int coordinator_rank = 0;
  Digest options_digest{};                 // of every option that all ranks must share
  std::vector<std::string> stateful_keys;  // this rank's Stateful objects by key; the hooks run in the order of the sorted union
  std::optional<std::int64_t> step;
  std::map<std::string, std::string> user_metadata;
  std::optional<Duration> deadline;     // for the outcome; then the call is cancelled, by this rank for all. Not above 0: at once
  TrainerExecutor* executor = nullptr;  // runs every hook
  // Where a report is left if the call fails (failure_report.hpp), unless it was only cancelled; "": nowhere.
  std::string report_directory;
  // Is told how far the call is, and asked what to tell the coordinator. May be null: then this rank's part is not known.
  std::shared_ptr<CallProgress> progress;
  // Runs once on the executor, after all ranks have joined, with the agreed order of keys: the Stateful hooks. May throw.
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

// A decision that one rank makes and all ranks follow, with two messages per rank. `checkpoint_id` says what is decided, and is
// the same on all ranks. There is no `begin`, and only the coordinator runs a hook. A trace ring keeps only the failures of
// agreements.
struct AgreeCall : Call {
  std::string text;  // this rank's input; above kAgreementTextMax bytes (messages/codec.hpp) the call fails on all ranks
  // Returns the answer to all texts, by rank; at most kAgreementAnswerMax bytes. Runs on the coordinator's executor. May throw.
  std::function<std::string(const std::vector<std::string>& brought)> decide;
};

// A process's actor threads, shared by all its ranks and worlds.
class ActorSystem {
 public:
  // `threads`: of the scheduler; brokers have one more. 0: as many as useful here (at least 2, at most 4).
  static std::shared_ptr<ActorSystem> create(unsigned threads = 0);
  virtual ~ActorSystem() = default;
};

// Makes the actor that carries frames between ranks: see actors/links/links.hpp.
class LinksFactory;

struct RankConfig {
  int rank = 0;
  int world_size = 1;
  std::string incarnation;   // 32 hexadecimal digits, the same on all ranks
  bool one_process = false;  // all ranks live in this process: stores that are one process's will do
  RuntimeOptions options;
  std::shared_ptr<Observer> observer;  // may be null
  std::string trace_directory;         // where all events go to, in files; "": nowhere
  bool trace_contents = false;         // with what state machines are given and decide: check_traces can go through it again
  std::shared_ptr<Injector> injector;  // faults on purpose; null: none
};

class RankRuntime {
 public:
  RankRuntime(std::shared_ptr<ActorSystem> system, RankConfig config, std::shared_ptr<LinksFactory> links);
  ~RankRuntime();  // as shutdown(0)
  RankRuntime(const RankRuntime&) = delete;
  RankRuntime& operator=(const RankRuntime&) = delete;

  // Starts an attempt; `done` is called exactly once, after the last hook has let go of what `call` points to, on the thread that let
  // go last: an actor's, the executor's or a writer's.
  // One attempt per checkpointer at a time; different checkpointers run side by side. Returns the call's ticket. Thread-safe.
  std::uint64_t save(SaveCall call, std::function<void(Outcome)> done);
  std::uint64_t load(LoadCall call, std::function<void(Outcome)> done);
  std::uint64_t agree(AgreeCall call, std::function<void(Outcome)> done);

  // The caller wants that call to end: on all ranks, with a failure of this one, unless its checkpoint is being published already. Its
  // `done` is called as ever. Returns at once; nothing happens if the call has ended. Thread-safe.
  void cancel(const std::string& checkpointer, std::uint64_t ticket, const std::string& why);

  // Ends all attempts as cancelled, stops the actors, closes the links. Returns false if something had not ended by the deadline.
  bool shutdown(std::chrono::milliseconds deadline);

  // Puts a line of its own into the trace. `what`: a name, as in ObservedEvent. Thread-safe.
  void note(std::string_view what);

  // Writes the ring to a file, as tracing/trace_writer.hpp says.
  void write_trace(const std::string& path) const;
  // The same under the name that such a file has, in a directory that is made if need be.
  void write_trace_in(const std::string& directory) const;
  // Writes the trace ring as text, oldest event first.
  std::string dump_trace() const;

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace cairn
