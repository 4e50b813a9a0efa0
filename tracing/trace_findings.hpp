// The findings of `diagnose` in the traces of a save or load: see trace_diagnosis.hpp.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <cairn/tracing/trace_chain.hpp>
#include <cairn/tracing/trace_directory.hpp>

namespace cairn {

enum class TracedEnd : std::uint8_t {
  kSucceeded = 1,
  kFailed,
  kCancelled,   // by callers or their deadlines, with no other failure
  kUnfinished,  // no rank's trace has an outcome
  kRunning,     // not yet: TracedAttempt::is_running
};
const char* to_string(TracedEnd end) noexcept;

// A hook that began, and its outcome.
struct TracedHook {
  std::string name;  // "write_data"
  Actor actor = Actor::kStorage;
  WallTime begin;
  std::optional<Duration> duration;  // no value: the hook had not ended when the rank was last heard from
};

// The fate of a rank that other ranks lost touch with, according to its trace and cairn-launch.
enum class RankFate : std::uint8_t {
  kUnknown = 1,
  kEnded,       // its process was killed, or exited
  kCutOff,      // it went on: only its connection was lost
  kFrozen,      // its process existed, but did nothing
  kLeft,        // it left the world normally
  kActorEnded,  // an exception ended its supervisor; the process went on
};
const char* to_string(RankFate fate) noexcept;

struct TracedStoreOperation {
  int rank = 0;
  std::string name;    // "write_at"
  std::string object;  // the last part of its URL
  std::uint64_t bytes = 0;
  Duration duration{0};
};

// An entry of the failure map, with additional information from the traces.
struct TracedFailure {
  int rank = 0;
  std::optional<FailureKind> kind;  // no value: no failure map names the rank, and its trace ends within a hook
  std::optional<ErrorCode> code;
  std::optional<Phase> phase;
  // For a lost rank: the phase that its own trace shows, if known. `phase` is the phase of the
  // ranks that noticed the loss.
  std::optional<Phase> own_phase;
  std::string text;                           // the exception's type and text, at most kEventTextMax bytes
  std::optional<TracedHook> hook;             // the hook that failed, or that was running when the rank was last heard of
  std::optional<TracedStoreOperation> store;  // the store operation that failed in `hook`
  // The rank's last event in this attempt. If other ranks gave up on this rank, this is its last
  // event before they did, because a frozen process may go on later. Points into the trace; may be
  // null.
  const ObservedEvent* last_event = nullptr;
  std::optional<WallTime> last_sign;  // the time of `last_event`
  RankFate fate = RankFate::kUnknown;
  std::string fate_text;    // "its process was killed by SIGKILL"; "" if nothing is known
  std::string last_action;  // the rank's last action: "sent Written to rank 0, which arrived"; "" if unknown
  bool told = true;         // true: a failure map has it; false: inferred from a hook that threw or a trace that ends early
};

// Returns a phrase for the operation: "write_at of its store". Two kinds of work that are not store
// operations have phrases of their own: "the removal of old checkpoints" and "the copy of its
// state".
std::string subject_text(const TracedStoreOperation& operation);
// Returns "write of its store took 1.2 s: OBJECT, 4.0 MiB, 3.3 MiB/s".
std::string describe(const TracedStoreOperation& operation);
std::string kind_text(const TracedFailure& failure);  // "raised"; "unfinished" if it has no kind

struct TracedPhase {
  Phase phase = Phase::kJoin;
  WallTime begin;
  Duration duration{0};
  bool has_ended = true;
  // How long the ranks took for their parts of the phase. In `join`, a rank's part lasts from the
  // earliest call of any rank to this rank's own call. Unset for phases in which only the
  // coordinator works.
  int slowest_rank = -1;  // ranks in `unfinished` count as slower than all others
  Duration slowest{0};
  Duration median{0};
  std::vector<int> unfinished;  // ranks that began their part and did not finish it
};

// A period in which a rank waited for the answers of other ranks, or in which all others had
// answered and it was still working on its own part.
struct TracedWait {
  int waiter = 0;
  std::vector<int> awaited;  // ascending; if the only entry is the waiter itself, the waiter was still working on its own part
  std::optional<Phase> phase;
  WallTime since;  // when all ranks but the awaited ones had answered; if an awaited rank was lost, its last sign of life
  Duration duration{0};
  bool was_answered = true;
};

// Two ranks between which messages on the critical path took a long time to arrive.
struct TracedConnection {
  int rank = 0;
  int other = 0;  // greater than `rank`
  std::size_t messages = 0;
  Duration duration{0};  // of all these messages
  Duration longest{0};   // of one of them
};

struct TracedNotice {
  int rank = -1;  // the rank that the notice is about; -1: several or all ranks
  std::string text;
};

struct Diagnosis {
  TracedEnd end = TracedEnd::kSucceeded;
  std::optional<Committed> committed;  // nothing: the traces contain no outcome
  WallTime begin;
  Duration duration{0};                 // until the last rank's outcome, or the last event
  int coordinator = -1;                 // -1: unknown from the traces
  std::vector<TracedFailure> failures;  // by rank; if a deadline passed, ranks that held the call up come first
  std::vector<TracedPhase> phases;      // in order
  std::optional<TracedWait> wait;       // the longest wait
  // The step of the critical path that took longest; nothing if the traces contain no outcome.
  std::optional<PathStep> longest_step;
  // Set if the messages between two ranks together took at least 100 ms, at least as long as
  // `longest_step`, and at least twice as long as the slowest of these messages.
  std::optional<TracedConnection> slow_connection;
  // The slowest store operation, if it took at least 100 ms and a fifth of the call.
  std::optional<TracedStoreOperation> slow_store;
  std::uint64_t bytes = 0;            // bytes of tensors to write or read, over all ranks
  double bytes_per_second = 0;        // over the phase that wrote or read them; 0: unknown
  std::vector<TracedNotice> notices;  // most important first
  std::map<int, TracedHook> in_hook;  // of a running call: the hooks that ranks are in, by rank
};

}  // namespace cairn
