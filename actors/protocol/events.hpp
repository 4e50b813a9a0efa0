// The inputs and outputs of the state machines: `effects step(event)`. All are plain structs
// without clock, I/O, threads or actors. The driver of a machine performs its effects in order and
// feeds the results back as events.
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

// The user code that an attempt runs on one rank, one hook at a time. docs/protocol.md has the
// order.
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
  kAbandon,  // after a failure: stops writing; if the outcome is known, also removes this rank's files
  kRelease,  // last, after all other hooks; if the outcome of a failed save is known, also removes this rank's files
  kDecide,   // the only hook of an agreement
};
// Returns DCP's name for the hook, such as "set_up_planner". Some names differ for loads:
// "set_up_storage_reader", "read_data".
const char* name_of(Hook hook, Operation operation) noexcept;
// Returns the actor that runs the hook and reports its failure: kPlanner or kStorage.
Actor actor_of(Hook hook) noexcept;

// The texts of an agreement. kDecide takes one text per rank, in rank order, and returns one text,
// the answer.
struct AgreementTexts {
  std::vector<std::string> texts;
};

struct FinishArguments {
  std::shared_ptr<Metadata> metadata;
  std::shared_ptr<std::vector<WriteResults>> results;  // by rank
};

// The argument or result of a hook. Plans are moved: after a step only the receiver holds them, and
// may change or empty them.
using HookValue = std::variant<std::monostate,                          //
                               std::vector<std::string>,                // to kBegin: the order of keys
                               std::string,                             // from kReadMetadata: the save id it names
                               std::shared_ptr<SavePlan>,               // local plans, kFinishPlan, to kMoveData
                               std::shared_ptr<LoadPlan>,               // the same
                               std::shared_ptr<std::vector<SavePlan>>,  // to kCreateGlobalPlan; kPrepareGlobalPlan
                               std::shared_ptr<std::vector<LoadPlan>>,  // the same
                               std::shared_ptr<cairn::GlobalSavePlan>,  // from kCreateGlobalPlan
                               std::shared_ptr<WriteResults>,           // from kMoveData
                               FinishArguments,                         // to kFinish
                               Committed,        // from kAskCommitted; to kAbandon and kRelease: the outcome
                               AgreementTexts>;

// --- effects -------------------------------------------------------------------------------------

struct Send {
  int to = 0;
  std::uint64_t counter = 0;  // of the attempt; 0 before it has begun
  Message body;
};

// Runs a hook. Exactly one HookDone with the same sequence number follows.
struct RunHook {
  Hook hook = Hook::kReset;
  Operation operation = Operation::kSave;
  Phase phase = Phase::kLocalPlan;
  std::uint64_t sequence = 0;
  std::uint64_t counter = 0;
  std::string save_id;
  bool is_coordinator = false;
  HookValue argument;
};

using cairn::Timer;
// Returns whether the coordinator's machine uses the timer. Otherwise the rank's machine does.
bool is_of_coordinator(Timer timer) noexcept;

// Replaces a timer with the same name.
struct StartTimer {
  Timer timer = Timer::kAnswer;
  Duration after{0};
};
struct StopTimer {
  Timer timer = Timer::kAnswer;
};

// The rank's call has ended, and no hook is running.
struct Finished {
  FailureMap failures;
  Committed committed = Committed::kNo;
  std::string save_id;
  std::string answer{};  // of a successful agreement
};

// The progress of all ranks, for display. Only while the call runs.
struct ProgressTold {
  JobProgress job;
};

// The machine is in another state, or its call took a turn. For traces.
struct StateChanged {
  std::variant<RankState, CoordinatorState, SuccessionState, CallTurn> to;
};

// The machine ignored its input. `why` lives forever. For traces.
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

using Effect = std::variant<Send, RunHook, StartTimer, StopTimer, Finished, ProgressTold, StateChanged, InputIgnored, Warn>;
using Effects = std::vector<Effect>;

// --- events --------------------------------------------------------------------------------------

// The trainer has started a call.
struct CallStarted {
  std::uint64_t ticket = 0;
  std::uint64_t ordinal = 0;
  Operation operation = Operation::kSave;
  std::string checkpoint_id;
  int coordinator_rank = 0;
  Digest options_digest{};
  std::vector<std::string> stateful_keys;
  std::optional<Duration> deadline;  // for the outcome, set by the caller; negative: already passed
  std::string text{};                // this rank's input to an agreement
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
struct HookDone {
  std::uint64_t sequence = 0;
  std::variant<HookValue, Failure> result;
};
struct TimerFired {
  Timer timer = Timer::kAnswer;
};
// Sent instead of TimerFired for Timer::kProgress: how much of its own part the rank has moved.
struct ProgressDue {
  Moved moved{};
};
// No message of `rank` arrives before its next PeerUp; or, if `reachable`, one message to or from
// it could not be sent or read.
struct PeerDown {
  int rank = 0;
  bool reachable = false;  // the connection still works: the rank must be told how the attempt ended
  bool unopened = false;   // no connection could be made: an immediate retry would be useless
  bool gave_up = false;    // this process stood still, and the rank closed the connection for that reason
  FailureKind kind = FailureKind::kLost;
  ErrorCode code = ErrorCode::kUnavailable;
  std::string why;
};
// Returns the failure that this is for a running attempt, with the text that all ranks get.
Failure failure_of(const PeerDown& down, Phase phase);
struct PeerUp {
  int rank = 0;
};
// A planner or storage actor of this rank has died.
struct ActorDied {
  std::string actor;
  std::string why;
};
// The runtime is being shut down.
struct Cancelled {
  std::string why;
};

using Event =
    std::variant<CallStarted, CancelRequested, Received, HookDone, TimerFired, ProgressDue, PeerDown, PeerUp, ActorDied, Cancelled>;

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
