// The failure map: which rank failed, and how. All surviving ranks receive the same map.
#pragma once

#include <cstdint>
#include <exception>
#include <map>
#include <string>
#include <vector>

#include <cairn/base/error.hpp>

namespace cairn {

// The steps of a save or load. A failure names the phase that its rank was in.
enum class Phase : std::uint8_t {
  kJoin = 1,    // all ranks learn of the call; Stateful hooks run
  kLocalPlan,   // reset, set_up, read_metadata, create_local_plan, prepare_local_plan
  kGlobalPlan,  // create_global_plan, prepare_global_plan, decide: on the coordinator
  kWrite,       // finish_plan, write_data
  kRead,        // finish_plan, read_data
  kFinish,      // finish, publication: on the coordinator
};

enum class FailureKind : std::uint8_t {
  kRaised = 1,  // user code or storage code threw, or a rank made an invalid call or one that differs from the coordinator's
  kLost,        // the process or its connection died
  kSilent,      // no heartbeat within the heartbeat timeout, or no answer before a deadline
  kCancelled,   // cancelled by the caller, by the caller's deadline, or by a shutdown
  kBusy,        // the rank was told to stop, and had not stopped after the grace period or at shutdown
  kInternal,    // a broken invariant in Cairn
};

// Says whether the checkpoint of a failed save exists nevertheless.
enum class Committed : std::uint8_t { kNo = 1, kYes, kUnknown };

const char* to_string(Phase phase) noexcept;
const char* to_string(FailureKind kind) noexcept;
const char* to_string(Committed committed) noexcept;

struct Failure {
  int rank = 0;  // global rank, 0-based
  Phase phase = Phase::kJoin;
  FailureKind kind = FailureKind::kRaised;
  ErrorCode code = ErrorCode::kInternal;  // the code of a cairn::Error; kUnavailable for other exception types
  std::string type;                       // demangled C++ type of the exception, "" if nothing was thrown
  std::string what;                       // text of the exception, at most `kFailureTextMax` bytes
  std::string actor;                      // planner, storage, coordinator, supervisor, link, trainer
  std::uint64_t trace_position = 0;       // id of the failure's event in the trace of `rank`, 0 if not recorded

  // Set only on the rank whose code threw the exception. Comparisons ignore this member.
  std::exception_ptr exception;
  // The process whose code threw the exception, such as "process 123 on node7". "" if nothing was
  // thrown, and in the map of a call in which more than `kProcessesNamedMax` ranks failed.
  // Comparisons ignore this member.
  std::string process{};

  friend bool operator==(const Failure& a, const Failure& b);
  friend bool operator!=(const Failure& a, const Failure& b) { return !(a == b); }
};

inline constexpr std::size_t kFailureTextMax = std::size_t{16} * 1024;
inline constexpr std::size_t kProcessesNamedMax = 16;

using FailureMap = std::map<int, Failure>;  // by rank

// Thrown in place of an exception of user code, to say where it was thrown. Does not derive from
// std::exception, because only `capture_failure` and Cairn itself need the place.
struct PlacedException {
  std::string place;  // 'state_dict() of "sampler"'
  std::exception_ptr exception;
};

// Returns a Failure with the type, text and code of `exception`, or of the current exception if
// `exception` is null. Of a PlacedException, returns that of the exception in it, with a text that
// begins with the place. Never throws, even if the exception's `what()` does.
Failure capture_failure(int rank, Phase phase, const char* actor, std::exception_ptr exception) noexcept;

// The ranks whose failures differ only in rank, trace position and process.
struct FailureGroup {
  struct Member {
    int rank = 0;
    std::uint64_t trace_position = 0;
    std::string process{};
  };
  Failure cause;                // without rank, trace position, exception and process
  std::vector<Member> members;  // by rank, ascending
};
struct CauseInMap {
  const Failure* cause = nullptr;  // in the map: the failure of the lowest rank
  std::vector<FailureGroup::Member> members;
};
// Groups `failures` by cause, in the order of the lowest rank of each group.
std::vector<CauseInMap> group_by_cause(const FailureMap& failures);

// Returns the likeliest cause, with its ranks. If there are several causes, a list of the 16
// likeliest, including the first, follows. Ranks with equal causes share one entry.
std::string describe(const FailureMap& failures);

// How a save, a load or an agreement ended, as one rank gets it.
struct CallResult {
  FailureMap failures;  // empty: success
  Committed committed = Committed::kNo;
  std::string save_id;
  std::string answer{};  // the answer of a successful agreement
  bool ok() const { return failures.empty(); }
};

// A save or load failed. Every live rank of the attempt throws this exception with the same map.
// After a failed save the previous checkpoint is intact; `committed()` says whether the new one
// exists.
class CheckpointException : public Error {
 public:
  // `result` must have a failure.
  CheckpointException(const std::string& operation, CallResult result);

  const CallResult& result() const noexcept { return result_; }
  const FailureMap& failures() const noexcept { return result_.failures; }
  Committed committed() const noexcept { return result_.committed; }
  const std::string& save_id() const noexcept { return result_.save_id; }

  // Rethrows the original exception of `rank`, or returns if this process does not hold it. A
  // process holds only the exception of its own rank.
  void rethrow_original(int rank) const;

 private:
  CallResult result_;
};

}  // namespace cairn
