// The inputs and the outcome of one call: a save, a load or an agreement. Contains no type of CAF
// or Protobuf. Internal.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <cairn/actors/call_hooks.hpp>
#include <cairn/actors/call_progress.hpp>
#include <cairn/actors/protocol/events.hpp>
#include <cairn/base/clock.hpp>
#include <cairn/base/digest.hpp>
#include <cairn/base/failure.hpp>

namespace cairn {

// The interface between actors, which never block, and the hooks of planners, writers, readers and
// Stateful objects, which may block.
class TrainerExecutor {
 public:
  virtual ~TrainerExecutor() = default;
  // Queues `task` and returns. Tasks run one at a time, in order. `save` and `load` run tasks on
  // the thread that called them. An asynchronous save runs tasks on the calling thread until
  // `async_save` returns, and then on a thread of its own. Tasks must not throw. Thread-safe.
  virtual void post(std::function<void()> task) = 0;
};

// Identifies a call. `ordinal` is the number of the call among all calls of this checkpointer on
// this rank.
struct CallId {
  std::string checkpointer;
  std::uint64_t ordinal = 0;
};

// The inputs of a call. The pointers must stay valid until `done` is called (rank_runtime.hpp).
struct Call {
  CallId id;
  std::string checkpoint_id;
  int coordinator_rank = 0;
  Digest options_digest{};  // the digest of all options that must be equal on all ranks
  std::string options_text{};  // the same options, one a line, for the error if they differ
  // The keys of this rank's Stateful objects. The coordinator sorts the keys of all ranks into one
  // list. Every rank runs its Stateful hooks in the order of that list.
  std::vector<std::string> stateful_keys;
  std::optional<std::int64_t> step;
  std::map<std::string, std::string> user_metadata;
  // Time limit from the start of the call to its outcome. When it has passed, this rank cancels the
  // call on all ranks. 0 or less cancels at once.
  std::optional<Duration> deadline;
  TrainerExecutor* executor = nullptr;  // runs every hook
  // Existing directory for the report of a failed call (failure_report.hpp); "": no report. A call
  // whose failures are all cancellations gets no report, unless a deadline caused one of them.
  std::string report_directory;
  // Receives the call's progress, and supplies this rank's progress to the coordinator. If null,
  // this rank's progress is unknown.
  std::shared_ptr<CallProgress> progress;
  // Runs the Stateful hooks. Called once on the executor after all ranks have joined, with the
  // agreed order of keys. May throw.
  std::function<void(const std::vector<std::string>& key_order)> begin;
  // The name of the part of `begin` that took longest, for traces. `begin` may set it.
  std::shared_ptr<const std::string> longest_part;
};

struct SaveCall : Call {
  std::shared_ptr<SaveHooks> hooks;
  CheckReplicas check_replicas = CheckReplicas::kOff;  // read on the coordinator
};

struct LoadCall : Call {
  std::shared_ptr<LoadHooks> hooks;
};

// An agreement: the coordinator decides, and all ranks get its answer. Takes two messages per rank,
// or three if the coordinator is not rank 0. `checkpoint_id` names the decision, and must be the
// same on all ranks. The only hook is `decide`. The trace ring keeps only events with `ok` false.
struct AgreeCall : Call {
  std::string text;  // this rank's input; if it exceeds kAgreementTextMax bytes (messages/codec.hpp), the call fails on all ranks
  // Returns the answer, at most kAgreementAnswerMax bytes. The argument has the texts of all ranks,
  // indexed by rank. Runs on the coordinator's executor. May throw.
  std::function<std::string(const std::vector<std::string>& brought)> decide;
};

}  // namespace cairn
