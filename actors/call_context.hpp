// The data of one running call on one rank, shared by the supervisor and the call's tasks.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include <cairn/actors/call.hpp>
#include <cairn/actors/protocol/events.hpp>
#include <cairn/actors/trace.hpp>

namespace cairn {

// Calls `done` exactly once, when the supervisor has called `end` or `give_up` and each task has
// called `let_go`. After `done`, no data of the call is accessed and nothing is posted to its
// executor.
class CallContext {
 public:
  using AnyCall = std::variant<SaveCall, LoadCall, AgreeCall>;
  static protocol::Operation operation_of(const AnyCall& call);

  CallContext(AnyCall call, std::uint64_t ticket, int rank, int world_size, bool one_process, std::function<void(CallResult)> done);

  const Call& call() const;
  const SaveCall& save() const { return std::get<SaveCall>(call_); }
  const LoadCall& load() const { return std::get<LoadCall>(call_); }
  const AgreeCall& agreement() const { return std::get<AgreeCall>(call_); }
  protocol::Operation operation() const { return operation_of(call_); }
  std::uint64_t ticket() const { return ticket_; }
  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  protocol::CallStarted started() const;  // for the rank's machine
  StorageContext storage_context(std::uint64_t counter, const std::string& save_id, bool is_coordinator) const;
  // Records store operations of this call in the trace if they take at least `duration_min` or
  // fail. Call this before the context is shared.
  void trace_stores(std::shared_ptr<Tracer> tracer, Duration duration_min);

  // The metadata that this rank has read for a load. Planner and reader refer to it until the call
  // ends. Only hooks may access it.
  std::optional<Metadata> metadata;
  // The finished plan of this rank. A load may keep its local plan here until then. A writer that
  // has thrown may still read the plan until `abandon` returns. Only hooks may access it.
  std::optional<SavePlan> save_plan;
  std::optional<LoadPlan> load_plan;

  // Tells the call's tasks to start no further hook, except those named at protocol::StopTasks.
  // Thread-safe.
  void tell_to_stop() { told_to_stop_ = true; }
  bool is_told_to_stop() const { return told_to_stop_; }
  // Sets the hook that is running on this rank; null: none. `name` must have static storage
  // duration. Thread-safe.
  void set_running_hook(const char* name) { running_hook_ = name; }
  const char* running_hook() const { return running_hook_; }

  // Sets the function to which `report_early` passes the outcome, only once. It reports a call that
  // has failed while one of its hooks still runs. Call this before the context is shared.
  void set_early_report(std::function<void(CallResult)> report) { early_report_ = std::move(report); }
  void report_early(CallResult outcome);

  // Sets the function that gets the failure of `give_up` before `done` does. Other ranks do not
  // know then that the call has ended. Call this before the context is shared.
  void set_lost_report(std::function<void(const CallContext&, const Failure&)> report) { lost_report_ = std::move(report); }

  // The end of the call. The supervisor calls `end` with the outcome, or `give_up` if it ends
  // before it knows the outcome; without `failure`, the failure says that. Only the first call of
  // either counts.
  void end(CallResult outcome);
  void give_up(std::optional<Failure> failure = std::nullopt);
  // A task of the call calls `hold` when it is made, and `let_go` when it has ended and its hooks
  // use nothing of the call any more: the hooks may be queued on the executor, be running, or have
  // returned a future that is not ready. Thread-safe.
  void hold() { ++holders_; }
  void let_go();

 private:
  const AnyCall call_;
  const std::uint64_t ticket_;
  const int rank_;
  const int world_size_;
  const bool one_process_;  // all ranks live in this process
  const std::function<void(CallResult)> done_;
  std::function<void(CallResult)> early_report_;
  std::function<void(const CallContext&, const Failure&)> lost_report_;
  std::shared_ptr<Tracer> tracer_;  // null: store operations are not traced
  Duration store_duration_min_{0};
  std::atomic<bool> told_to_stop_{false};
  std::atomic<const char*> running_hook_{nullptr};
  std::atomic<int> holders_{1};  // the supervisor, and the tasks
  std::atomic<bool> has_ended_{false};
  CallResult outcome_;
  std::optional<Failure> lost_;
};

}  // namespace cairn
