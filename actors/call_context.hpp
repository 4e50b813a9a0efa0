// What one running call of one rank points to, shared by all who may run its hooks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include <cairn/actors/protocol/events.hpp>
#include <cairn/actors/rank_runtime.hpp>
#include <cairn/actors/trace.hpp>

namespace cairn {

// Calls `done` exactly once: when its last holder lets go of it, which is its supervisor or a hook that was still on its way to the
// executor, under way, or waiting for its data. So nothing of a call is touched, and nothing is posted to its executor, once `done` ran.
class CallContext {
 public:
  using AnyCall = std::variant<SaveCall, LoadCall, AgreeCall>;
  static protocol::Operation operation_of(const AnyCall& call);

  CallContext(AnyCall call, std::uint64_t ticket, int rank, int world_size, bool one_process,
              std::function<void(Outcome)> done);
  ~CallContext();
  CallContext(const CallContext&) = delete;
  CallContext& operator=(const CallContext&) = delete;

  const Call& call() const;
  const SaveCall& save() const { return std::get<SaveCall>(call_); }
  const LoadCall& load() const { return std::get<LoadCall>(call_); }
  const AgreeCall& agreement() const { return std::get<AgreeCall>(call_); }
  protocol::Operation operation() const { return operation_of(call_); }
  std::uint64_t ticket() const { return ticket_; }
  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  StorageContext storage_context(const protocol::RunHook& hook) const;
  // Operations of its stores that take so long, or fail, are to be in the trace. Before it is shared.
  void trace_stores(std::shared_ptr<Tracer> tracer, Duration duration_min);

  // Of a load, as this rank has read it. Touched by hooks only.
  std::optional<Metadata> metadata;

  // What `done` gets. From the supervisor only, which lets go of the call then; the first one counts.
  void finish(Outcome outcome);
  // What it gets if nobody calls `finish`.
  void set_last_resort(Failure failure) { last_resort_ = std::move(failure); }

 private:
  const AnyCall call_;
  const std::uint64_t ticket_;
  const int rank_;
  const int world_size_;
  const bool one_process_;  // all ranks live in this process
  const std::function<void(Outcome)> done_;
  std::shared_ptr<Tracer> tracer_;  // null: no operations of stores are traced
  Duration store_duration_min_{0};
  std::optional<Outcome> outcome_;
  Failure last_resort_;
};

}  // namespace cairn
