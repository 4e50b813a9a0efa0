// The inputs and outputs of the state machines: `effects step(event)`. All are plain structs
// without clock, I/O, threads or actors. The actor that owns a machine performs the effects in
// order, and passes the results to the machine as events.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <cairn/base/clock.hpp>
#include <cairn/base/failure.hpp>
#include <cairn/base/observer.hpp>
#include <cairn/messages/control.hpp>
#include <cairn/planning/global_plan.hpp>
#include <cairn/planning/metadata.hpp>
#include <cairn/planning/plan.hpp>

namespace cairn::protocol {

// --- hooks ---------------------------------------------------------------------------------------

// The user code that an attempt runs on one rank: functions of the planner, of the writer or
// reader, and of Stateful objects. kAbandon may run while the future that kMoveData returned is
// pending, but never while the function itself runs.
enum class Hook : std::uint8_t {
  kReset = 1,
  kBegin,
  kReadMetadata,
  kSetUpPlanner,
  kSetUpStorage,
  kCreateLocalPlan,
  kPrepareLocalPlan,
  kCreateGlobalPlan,
  kPrepareGlobalPlan,
  kFinishPlan,
  kMoveData,
  kFinish,
  kAskCommitted,
  kAbandon,
  kRelease,
  kDecide,
};
// Returns the hook's name in texts and traces, such as "set_up_planner". Some names differ between
// saves and loads: "write_data", "read_data".
const char* name_of(Hook hook, Operation operation) noexcept;
// Returns the actor that failures and traces name for the hook: kPlanner for `decide` and for hooks
// of planners and Stateful objects, otherwise kStorage. A task may run hooks of both.
Actor actor_of(Hook hook) noexcept;

// --- tasks ---------------------------------------------------------------------------------------

// A task is one rank's part of a phase. It runs hooks in a fixed order, which
// actors/planner_actor.cpp and actors/storage_actor.cpp list. It ends with the result that its
// comment names, with Stopped, or with a Failure. Plans are shared: a task changes only copies.

// Runs on every rank, in the planner actor. Ends with StateGathered. Resets the writer or reader,
// then runs the Stateful hooks. These may contain collectives, so they run even if the reset failed
// or the rank was told to stop. An asynchronous save runs this task on its caller's thread, and
// later tasks on its own thread.
struct GatherState {
  std::vector<std::string> key_order;
};
struct StateGathered {};
// Runs on every rank. Ends with LocalSavePlan or LocalLoadPlan.
struct CreateLocalPlan {};
// The global plans of a save, by rank. Content hashes, and sizes of bytes objects, are those of
// that save; ranks have their own.
struct KeptGlobalPlans {
  Digest of{};  // the digest of the digests of the local plans
  std::vector<std::shared_ptr<const SavePlan>> plans;
  std::vector<std::shared_ptr<const PlanPart>> parts;  // null: the plan is no part of the local one
};
// Runs on the coordinator. Ends with GlobalSavePlans.
struct CreateGlobalSavePlan {
  std::vector<std::shared_ptr<const SavePlan>> local_plans;  // by rank
  Digest of{};                                               // see KeptGlobalPlans
  std::shared_ptr<const KeptGlobalPlans> last;               // of the last save, if `of` was the same; otherwise null
};
struct GlobalSavePlans {
  std::shared_ptr<const KeptGlobalPlans> all;
  std::shared_ptr<Metadata> metadata;
};
// Runs on the coordinator. Ends with GlobalLoadPlans. The plans are indexed by rank. All are null
// if the ranks keep theirs.
struct CreateGlobalLoadPlan {
  std::vector<std::shared_ptr<const LoadPlan>> local_plans;
};
struct GlobalLoadPlans {
  std::vector<std::shared_ptr<const LoadPlan>> plans;
};
// Runs on the coordinator, as the only task of an agreement. Ends with Answer.
struct Decide {
  std::vector<std::string> texts;  // by rank
};
struct Answer {
  std::string text;
};

// Write and Read run on every rank, in the storage actor. They end with Written and ReadDone.
struct Write {
  std::shared_ptr<const SavePlan> plan;
};
struct Read {
  std::shared_ptr<const LoadPlan> plan;  // null: the one that this rank keeps
};
// Runs on the coordinator. Ends with Published.
struct Finish {
  std::shared_ptr<Metadata> metadata;
  std::shared_ptr<std::vector<WriteResults>> results;  // by rank
};
struct Published {};
// Runs after a failure, on the coordinator or its successor. Ends with Committed.
struct AskCommitted {};
// Calls `abandon` of the writer or reader. Runs when a Write or Read is told to stop; then
// `committed` is empty. Also runs as the last task of a failed save; then `committed` is set, and
// the task may call the writer's `discard` (state/storage.hpp). Ends with Released.
struct Abandon {
  std::optional<Committed> committed;
};
// Runs as the last task of a failed load. Also runs as the last task of a failed save whose
// checkpoint exists, or in which Abandon ran before. If `committed` is set, may call the writer's
// `discard` (state/storage.hpp). Ends with Released.
struct Release {
  std::optional<Committed> committed;
};
struct Released {};

// The rank was told to stop before the task had run all of its hooks.
struct Stopped {};

using Task = std::variant<GatherState, CreateLocalPlan, CreateGlobalSavePlan, CreateGlobalLoadPlan, Decide, Write, Read, Finish,
                          AskCommitted, Abandon, Release>;
using TaskResult = std::variant<StateGathered, LocalSavePlan, LocalLoadPlan, GlobalSavePlans, GlobalLoadPlans, Answer, Written,
                                ReadDone, Published, Committed, Released, Stopped, Failure>;

// Return the type's name, such as "CreateLocalPlan".
const char* name_of(const Task& task) noexcept;
const char* name_of(const TaskResult& result) noexcept;
Hook main_hook_of(const Task& task) noexcept;  // error texts call the task by the name of this hook

// --- effects -------------------------------------------------------------------------------------

struct Send {
  int to = 0;
  std::uint64_t counter = 0;  // the attempt's counter; 0 before the attempt has begun
  Message body;
};

// Runs a task. Exactly one TaskEnded with the same sequence number follows.
struct RunTask {
  Task task;
  Operation operation = Operation::kSave;
  Phase phase = Phase::kLocalPlan;
  std::uint64_t sequence = 0;
  std::uint64_t counter = 0;
  std::string save_id;
  bool is_coordinator = false;
};
// Stops the tasks of the call on this rank, including the coordinator's: running hooks go on, but
// no further hook starts, except hooks of GatherState, of agreements and of the end of an attempt
// (kFinish to kRelease).
struct StopTasks {};

using cairn::Timer;

// Starts a timer. Replaces a running timer with the same name.
struct StartTimer {
  Timer timer = Timer::kAnswer;
  Duration after{0};
};
struct StopTimer {
  Timer timer = Timer::kAnswer;
};

// The rank's call has ended, and no task is running. The outcome is the same on every rank that is
// alive and reachable.
using cairn::CallResult;

// The progress of all ranks, for display. Emitted only while the call runs.
struct ProgressTold {
  JobProgress job;
};

// The machine changed its state, or its call reached a milestone. For traces.
struct StateChanged {
  std::variant<RankState, CoordinatorState, SuccessionState, CallTurn> to;
};

// The machine ignored its input. `why` must never be freed. For traces.
struct InputIgnored {
  Ignored what = Ignored::kInput;
  const char* why = "";
};

// A warning for the log.
struct Warn {
  std::string what;
};

// Makes a failure without an exception. Cuts its text as encoding would, so that all ranks hold the
// same map.
Failure make_failure(int rank, Phase phase, FailureKind kind, ErrorCode code, const char* actor, const std::string& what);

using Effect =
    std::variant<Send, RunTask, StopTasks, StartTimer, StopTimer, CallResult, ProgressTold, StateChanged, InputIgnored, Warn>;
using Effects = std::vector<Effect>;

// --- events --------------------------------------------------------------------------------------

// The trainer has started a call. The machine sets `counter_seen` and `world_size`.
struct CallStarted : Join {
  std::optional<Duration> deadline;  // for the outcome, set by the caller; negative: already passed
};
// The caller cancels the running call on all ranks.
struct CancelRequested {
  std::uint64_t ticket = 0;
  std::string why;  // the caller's reason; may be empty
};
// A message of this world and this checkpointer.
struct Received {
  int from = 0;
  std::uint64_t counter = 0;
  Message body;
};
struct TaskEnded {
  std::uint64_t sequence = 0;
  TaskResult result;
};
struct TimerFired {
  Timer timer = Timer::kAnswer;
  const char* running_hook = nullptr;  // the hook that this rank's call is running; null: none
};
// Replaces TimerFired for Timer::kProgress. `moved` says how much data this rank has moved.
struct ProgressDue {
  Moved moved{};
};
// If `reachable` is false, no message of `rank` arrives before the next PeerUp of `rank`. If it is
// true, only one message to or from the rank was lost, because it could not be sent or read.
struct PeerDown {
  int rank = 0;
  bool reachable = false;  // the connection still works: the rank must be told how the attempt ended
  bool unopened = false;   // no connection could be made: an immediate retry would be useless
  bool gave_up = false;    // this process was stopped for so long that the rank closed the connection
  FailureKind kind = FailureKind::kLost;
  ErrorCode code = ErrorCode::kUnavailable;
  std::string why;
};
// Returns the failure that `down` causes in a running attempt, with the text that all ranks get.
Failure failure_of(const PeerDown& down, Phase phase);
struct PeerUp {
  int rank = 0;
};
// A planner, storage or links actor of this rank has died. Another one may have replaced it.
struct ActorDied {
  Actor actor = Actor::kPlanner;
  std::string why;
};
// Returns the failure that `died` causes on rank `rank`.
Failure failure_of(const ActorDied& died, int rank, Phase phase);
// The runtime is being shut down.
struct Cancelled {
  std::string why;
};

using Event = std::variant<CallStarted, CancelRequested, Received, TaskEnded, TimerFired, ProgressDue, PeerDown, PeerUp, ActorDied,
                           Cancelled>;

// Formats a duration for texts, such as "1.5 s".
std::string in_seconds(Duration duration);

// Identifies a machine.
struct Identity {
  int rank = 0;
  int world_size = 1;
  std::string incarnation;
  std::string checkpointer;
  std::uint64_t counter_floor = 0;  // attempts up to this counter may have been made by an earlier machine
};

}  // namespace cairn::protocol
