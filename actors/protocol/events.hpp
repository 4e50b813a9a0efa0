// What the state machines take and give: `effects step(event)`. Plain records without clock, I/O, threads or actors. Whoever drives
// a machine performs its effects in order and feeds back what happens.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <cairn/base/clock.hpp>
#include <cairn/base/failure.hpp>
#include <cairn/messages/control.hpp>
#include <cairn/planning/global_plan.hpp>
#include <cairn/planning/metadata.hpp>
#include <cairn/planning/plan.hpp>

namespace cairn::protocol {

// --- hooks ----------------------------------------------------------------------------------------------------------------

// The user's code that one attempt runs on one rank, one after the other. docs/protocol.md has the order.
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
  kAbandon,  // after a failure: stops writing; with the outcome, also removes what was written
  kRelease,  // last: all earlier hooks have ended; with the outcome of a failed save, also removes what was written
  kDecide,   // the only hook of an agreement
};
// DCP's word for it: "set_up_planner". Loads have some of their own: "set_up_storage_reader", "read_data".
const char* name_of(Hook hook, Operation operation) noexcept;
// Who runs it and reports its failure: "planner" or "storage".
const char* actor_of(Hook hook) noexcept;

// The texts of an agreement. kDecide gets one text per rank, by rank, and returns one text, the answer.
struct AgreementTexts {
  std::vector<std::string> texts;
};

struct FinishArguments {
  std::shared_ptr<Metadata> metadata;
  std::shared_ptr<std::vector<WriteResults>> results;  // by rank
};

// What a hook takes and returns. Plans are handed on: after a step only the receiver holds them, and it may change or empty them.
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

// --- effects --------------------------------------------------------------------------------------------------------------

struct Send {
  int to = 0;
  std::uint64_t counter = 0;  // of the attempt; 0 before it has one
  Message body;
};

// Ends in exactly one HookDone with the same sequence number.
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

enum class Timer : std::uint8_t {
  kAnswer = 1,  // rank: the coordinator's next message, or its successor's
  kPhase,       // coordinator: the ranks' answers
  kProbe,       // coordinator: a sign of life of ranks that have not joined, or were lost before the call
  kSuccession,  // coordinator's machine of the rank that succeeds another: the ranks' answers, and the store's
  kCall,        // rank: the deadline that its caller has set
  kProgress,    // rank: it is time to say how far it is; no deadline
  kWaiting,     // coordinator: it is time to log the missing ranks; no deadline
};
// Whether it is the coordinator's machine that started it; otherwise the rank's.
bool is_of_coordinator(Timer timer) noexcept;

// Replaces the timer of the same name.
struct StartTimer {
  Timer timer = Timer::kAnswer;
  Duration after{0};
};
struct StopTimer {
  Timer timer = Timer::kAnswer;
};

// The rank's call has ended, and no hook runs any more.
struct Finished {
  FailureMap failures;
  Committed committed = Committed::kNo;
  std::string save_id;
  std::string answer{};  // of an agreement that succeeded
};

// How far all ranks are, for whoever wants to see it. Only while the call runs.
struct ProgressTold {
  JobProgress job;
};

// For traces: a change of state, or a message that was ignored. Texts live for ever.
struct Note {
  const char* what = "";
  bool ok = true;
};

// A warning for the log.
struct Warn {
  std::string what;
};

// A failure that nobody threw. Its text is cut as it will be when it travels, so that all ranks hold the same map.
Failure make_failure(int rank, Phase phase, FailureKind kind, ErrorCode code, const char* actor, const std::string& what);

using Effect = std::variant<Send, RunHook, StartTimer, StopTimer, Finished, ProgressTold, Note, Warn>;
using Effects = std::vector<Effect>;

// --- events ---------------------------------------------------------------------------------------------------------------

// The trainer has called.
struct CallStarted {
  std::uint64_t ticket = 0;
  std::uint64_t ordinal = 0;
  Operation operation = Operation::kSave;
  std::string checkpoint_id;
  int coordinator_rank = 0;
  Digest options_digest{};
  std::vector<std::string> stateful_keys;
  std::optional<Duration> deadline;  // for the outcome, as the caller has set it; negative: passed already
  std::string text{};                // of an agreement: this rank's input
};
// The caller wants the running call to end, on all ranks.
struct CancelRequested {
  std::uint64_t ticket = 0;
  std::string why;  // in the caller's words; may be empty
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
// In place of TimerFired, of Timer::kProgress: how much of its own part the rank has moved.
struct ProgressDue {
  Moved moved{};
};
// No message of this rank arrives any more before its next PeerUp, or one could not be read or sent.
struct PeerDown {
  int rank = 0;
  bool reachable = false;  // the connection itself still works: the rank is to hear how the attempt ended
  bool unopened = false;   // no connection could be made: an immediate retry would be useless
  FailureKind kind = FailureKind::kLost;
  ErrorCode code = ErrorCode::kUnavailable;
  std::string why;
};
// The failure that it is for the attempts that run, in the words in which all ranks hear it.
Failure failure_of(const PeerDown& down, Phase phase);
struct PeerUp {
  int rank = 0;
};
// One of the actors that run this rank's hooks has died and was replaced.
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

// "1.5 s", for texts.
std::string in_seconds(Duration duration);

// Who a machine is.
struct Identity {
  int rank = 0;
  int world_size = 1;
  std::string incarnation;
  std::string checkpointer;
  std::uint64_t counter_floor = 0;  // attempts up to this one may have been made by a machine before this one
};

}  // namespace cairn::protocol
