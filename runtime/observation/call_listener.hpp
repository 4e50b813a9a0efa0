// Tells a program about its saves and loads while they run, for dashboards, alarms or separate
// logs. PrometheusMetrics (runtime/observation/metrics.hpp) is such a listener.
//
//   struct Alarm : cairn::CallListener {
//     void on_failure(const cairn::CallFailed& failed) override {
//       page_somebody(failed.checkpoint_id, failed.text);
//     }
//   };
//   cairn::WorldOptions options;
//   options.listeners = {std::make_shared<Alarm>()};
//
// A listener gets the events of this rank's calls, in each world whose WorldOptions list it. Each
// world calls its listeners on one thread of its own, without locks held. A listener may therefore
// be slow, and may call anything, including saves and loads. Only `World::shutdown` and the
// destruction of the world's last handle wait for it, within their deadline. Exceptions from a
// listener are logged and go no further. If several worlds share a listener, for example because
// all ranks live in one process, each world calls it on its own thread, possibly at the same time.
//
// In each world, at most 4,096 events wait for delivery. If that many wait, new events are dropped,
// with a warning in the log.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include <cairn/base/clock.hpp>
#include <cairn/base/failure.hpp>

namespace cairn {

enum class CallOperation : std::uint8_t { kSave = 1, kLoad };
const char* to_string(CallOperation operation) noexcept;  // "save", "load"

// Fields common to all events of a call.
struct CallEvent {
  CallOperation operation = CallOperation::kSave;
  std::string checkpoint_id;  // as the trainer named it; cut at 1,024 bytes
  int rank = 0;               // this rank
  std::uint64_t call = 0;     // number of the call in this world on this rank, from 1; calls can overlap
  std::uint64_t attempt = 0;  // the number at the end of the save id, the same on all ranks; 0: not known yet
  WallTime time;              // when the event happened, not when it is delivered
  Duration elapsed{0};        // since the trainer made the call; monotonic
  std::uint64_t bytes = 0;    // tensor bytes that this rank writes or reads; 0 until the plan is known
};

// This rank has entered the next phase of the call. A rank that has done its part waits for the
// others in the same phase. Only the coordinator's rank enters `kGlobalPlan` and, for saves,
// `kFinish`: the others go on waiting.
struct CallPhase : CallEvent {
  Phase phase = Phase::kJoin;
};

// One entry of the failure map of a failed call. Delivered before `on_end`, in rank order.
struct CallFailed : CallEvent {
  int failed_rank = 0;
  FailureKind kind = FailureKind::kRaised;
  std::optional<Phase> phase;
  std::string code;  // the error code, as to_string(ErrorCode) returns it, e.g. "no_space"
  std::string text;  // type and text of the exception; cut at 1,024 bytes
};

struct CallEnd : CallEvent {
  bool ok = false;
  bool was_cancelled = false;                 // not ok, and all failures are cancellations or deadlines
  Committed committed = Committed::kUnknown;  // whether the checkpoint exists
  std::string save_id;                        // "" if the call failed before all ranks had joined it
  std::map<Phase, Duration> phases;           // the time that this rank spent in each phase, waiting included
};

class CallListener {
 public:
  virtual ~CallListener() = default;
  // The world of `rank` was made; the first event.
  virtual void on_world_start(int /*rank*/) {}
  virtual void on_start(const CallEvent&) {}
  virtual void on_phase(const CallPhase&) {}
  virtual void on_failure(const CallFailed&) {}
  // Handles the end of a call. Called once for each `on_start`, unless events were dropped.
  virtual void on_end(const CallEnd&) {}
  // The world was shut down as planned, or its last handle is gone; the last event.
  virtual void on_world_end(int /*rank*/) {}
};

}  // namespace cairn
