// One rank's actors behind a plain interface. Starts saves, loads and agreements, and reports each
// outcome once.
//
//   RankRuntime ── supervisor ─┬─ planner      runs the tasks that make plans, through the executor
//                              ├─ storage      runs the tasks that move data, through the executor
//                              ├─ coordinator  decides, on the rank that the attempt names
//                              └─ links        sends frames to other ranks and receives theirs
//
// Contains no type of CAF or Protobuf. Internal: users include runtime/cairn.hpp.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <cairn/actors/caf_system.hpp>
#include <cairn/actors/call.hpp>
#include <cairn/actors/rank_config.hpp>

namespace cairn {

// Makes the actor that carries messages between ranks: see actors/links/links.hpp.
class LinksFactory;

class RankRuntime {
 public:
  RankRuntime(std::shared_ptr<ActorSystem> system, RankConfig config, std::shared_ptr<LinksFactory> links);
  ~RankRuntime();  // as shutdown(0)

  // Starts a call and returns its ticket. `done` is called exactly once, on any thread, after the
  // last hook has released the objects that `call` points to. Throws kPrecondition after shutdown,
  // or while another call of the same checkpointer runs; calls of different checkpointers may run
  // at the same time. Throws kInvalidArgument if `call` is incomplete. Thread-safe.
  std::uint64_t save(SaveCall call, std::function<void(CallResult)> done);
  std::uint64_t load(LoadCall call, std::function<void(CallResult)> done);
  std::uint64_t agree(AgreeCall call, std::function<void(CallResult)> done);

  // Cancels a call on all ranks: this rank fails with kCancelled and a text that contains `why`.
  // `done` is still called. Does nothing if the call has ended, or if its checkpoint is already
  // being published. Returns at once. Thread-safe.
  void cancel(const std::string& checkpointer, std::uint64_t ticket, const std::string& why);

  // Cancels all calls, stops the actors and closes the links. Returns false if the actors had not
  // stopped within `deadline`; calls that still run then end when their hooks return. Thread-safe.
  bool shutdown(std::chrono::milliseconds deadline);

  // Adds an event named `what` to the trace. `what` must never be freed. Thread-safe.
  void note(std::string_view what);

  // Adds an operation of a call to the trace. The operation must have just ended. Does nothing if
  // it took less than `trace_store_operations`. `name` must never be freed. Thread-safe.
  void note_operation(const std::string& checkpointer, std::uint64_t ticket, std::string_view name, Duration duration);

  // Adds work that followed the outcome of a load and has just ended to the trace, as an operation
  // `name` and a second outcome. `detail` names the part that took longest. Does nothing if the
  // work succeeded in less than `trace_store_operations`. `name` must never be freed. Thread-safe.
  void note_last_step(const std::string& checkpointer, std::uint64_t ticket, std::string_view name, std::string_view detail,
                      Duration duration, CallResult outcome);

  // Writes the trace ring to a file. Throws as write_trace_file does (tracing/trace_writer.hpp).
  void write_trace(const std::string& path) const;
  // Writes the trace ring to a file of the standard name in `directory`. Creates the directory if
  // necessary.
  void write_trace_in(const std::string& directory) const;
  // Returns the trace ring as text, oldest event first.
  std::string dump_trace() const;

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace cairn
