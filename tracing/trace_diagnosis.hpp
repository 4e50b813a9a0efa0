// What a person wants to know first of a save or load: how it ended, where it failed, who was waited for, what took how long, and what
// looks wrong.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <cairn/tracing/trace_directory.hpp>
#include <cairn/tracing/trace_messages.hpp>

namespace cairn {

enum class TracedEnd : std::uint8_t {
  kSucceeded = 1,
  kFailed,
  kCancelled,   // by the caller, and nothing else was wrong
  kUnfinished,  // no rank's trace has an outcome
};
const char* to_string(TracedEnd end) noexcept;

// A hook that had begun, and what became of it.
struct TracedHook {
  std::string name;   // "write_data"
  std::string actor;  // "storage"
  WallTime begin;
  std::optional<Duration> duration;  // nothing: its end is not in the trace
};

// An entry of the failure map, with what the traces say beside it.
struct TracedFailure {
  int rank = 0;
  std::string kind;   // "raised"
  std::string code;   // "kNoSpace"
  std::string phase;  // "write"
  // Where a rank that is gone stood by its own trace; "" if that tells nothing. `phase` is where those stood who missed it.
  std::string own_phase;
  std::string text;                   // the exception's type and text, at most kEventTextMax bytes
  std::optional<TracedHook> hook;     // that failed, or that was running when the rank was last heard of
  std::optional<WallTime> last_sign;  // the last event of that rank within this attempt; nothing: it has no trace
  bool told = true;                   // it is in a failure map; otherwise it is concluded from a trace that ends
};

struct TracedPhase {
  std::string name;  // "write"
  WallTime begin;
  Duration duration{0};
  bool has_ended = true;
  // Of the ranks' own parts; of `join`, how long after the first one a rank has called. Empty where the coordinator alone works.
  int slowest_rank = -1;
  Duration slowest{0};
  Duration median{0};
  std::vector<int> unfinished;  // ranks that had begun their part and not ended it
};

// Some rank could not go on because of others.
struct TracedWait {
  int waiter = 0;
  std::vector<int> awaited;  // ascending
  std::string phase;
  WallTime since;  // everybody else had answered
  Duration duration{0};
  bool was_answered = true;
};

struct TracedNotice {
  int rank = -1;  // whom it is about; -1: several or all
  std::string text;
};

struct Diagnosis {
  TracedEnd end = TracedEnd::kSucceeded;
  std::string committed;  // "no", "yes", "unknown"; "" if no outcome is in the traces
  WallTime begin;
  Duration duration{0};                 // until the last rank had its outcome, or the last event
  int coordinator = -1;                 // -1: not to be seen in the traces
  std::vector<TracedFailure> failures;  // by rank
  std::vector<TracedPhase> phases;      // in their order
  std::optional<TracedWait> wait;       // the longest one
  std::uint64_t bytes = 0;              // of tensors that were to be written or read, all ranks
  double bytes_per_second = 0;          // over the phase in which they were; 0: not known
  std::vector<TracedNotice> notices;    // the most important ones first
};

Diagnosis diagnose(const Trace& trace, const std::vector<TracedMessage>& messages, const TraceClocks& clocks);

}  // namespace cairn
