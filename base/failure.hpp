// What went wrong, on which rank: the failure map that every surviving rank receives, identical on all of them.
#pragma once

#include <cstdint>
#include <exception>
#include <map>
#include <string>
#include <vector>

#include <cairn/base/error.hpp>

namespace cairn {

// The steps of one save or load. A failure names the phase that was running on its rank.
enum class Phase : std::uint8_t {
  kJoin = 1,         // the call is known to all ranks; Stateful hooks run
  kLocalPlan,        // reset, set_up, read_metadata, create_local_plan, prepare_local_plan
  kGlobalPlan,       // create_global_plan, prepare_global_plan: on the coordinator
  kWrite,            // finish_plan, write_data
  kRead,             // finish_plan, read_data
  kFinish,           // finish, publication: on the coordinator
};

enum class FailureKind : std::uint8_t {
  kRaised = 1,  // user or storage code threw
  kLost,        // the process or its connection died
  kSilent,      // no heartbeat for the configured time, or no answer before a deadline
  kCancelled,   // the caller cancelled
  kBusy,        // had not stopped when the grace period ended
  kInternal,    // a broken invariant of Cairn's own
};

// Whether the checkpoint of a failed save exists nevertheless.
enum class Committed : std::uint8_t { kNo = 1, kYes, kUnknown };

const char* to_string(Phase phase) noexcept;
const char* to_string(FailureKind kind) noexcept;
const char* to_string(Committed committed) noexcept;

struct Failure {
  int rank = 0;  // global rank, 0-based
  Phase phase = Phase::kJoin;
  FailureKind kind = FailureKind::kRaised;
  ErrorCode code = ErrorCode::kInternal;  // of a cairn::Error; kUnavailable for exceptions of other types
  std::string type;                       // demangled C++ type of the exception, "" when nothing was thrown
  std::string what;                       // its text, at most `kFailureTextMax` bytes
  std::string actor;                      // who reported it: "planner", "storage", "coordinator", "supervisor", "link"
  std::uint64_t trace_position = 0;       // of the event in the trace of `rank`, 0 when nothing was recorded

  // Set only on the rank where it was thrown; takes no part in comparison.
  std::exception_ptr exception;

  friend bool operator==(const Failure& a, const Failure& b);
  friend bool operator!=(const Failure& a, const Failure& b) { return !(a == b); }
};

inline constexpr std::size_t kFailureTextMax = 16 * 1024;

using FailureMap = std::map<int, Failure>;  // by rank

// Describes the exception in flight, or `exception`: its demangled type, text and code. Never throws, whatever its `what()` does.
Failure capture_failure(int rank, Phase phase, const char* actor, std::exception_ptr exception) noexcept;

// First the one-line cause, then one line per rank; equal causes are grouped, so that a thousand ranks stay readable.
std::string describe(const FailureMap& failures);

// A save or load failed. Every rank of the attempt that is alive throws one with the same map.
// After a failed save the checkpoint that was there before is whole; `committed()` says whether the new one exists.
class CheckpointException : public Error {
 public:
  CheckpointException(std::string operation, FailureMap failures, Committed committed, std::string save_id);

  const FailureMap& failures() const noexcept { return failures_; }
  Committed committed() const noexcept { return committed_; }
  const std::string& save_id() const noexcept { return save_id_; }

  // Throws the original exception of `rank` where this process holds it (its own rank); returns otherwise.
  void rethrow_original(int rank) const;

 private:
  FailureMap failures_;
  Committed committed_;
  std::string save_id_;
};

}  // namespace cairn
