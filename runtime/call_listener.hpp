// What a program is told of its saves and loads while they happen: for dashboards, alarms, a log of one's own. runtime/metrics.hpp is such a listener.
//
//   struct Alarm : cairn::CallListener {
//     void on_failure(const cairn::CallFailed& failed) override { page_somebody(failed.checkpoint_id, failed.text); }
//   };
//   cairn::WorldOptions options;
//   options.listeners = {std::make_shared<Alarm>()};
//
// A listener hears of the calls of the worlds that were given it, on this rank. Of one world it is called on one thread, which has no other work and
// belongs to that world; never under a lock, so it may take its time and call whatever it likes, saves and loads included: nothing waits for it but
// `World::shutdown` and the end of the world's last handle, as long as their deadline allows. What it throws is logged, and goes no further. A listener of
// several worlds, as when all ranks live in one process, is called on the thread of each, at a time.
//
// Beyond 4,096 events that it has not been told yet, newer ones are dropped, and the log says so.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <cairn/base/clock.hpp>
#include <cairn/base/failure.hpp>

namespace cairn {

enum class CallOperation : std::uint8_t { kSave = 1, kLoad };
const char* to_string(CallOperation operation) noexcept;  // "save", "load"

// What all events of one call have.
struct CallEvent {
  CallOperation operation = CallOperation::kSave;
  std::string checkpoint_id;  // as the trainer named it; what is longer than 1,024 bytes is cut
  int rank = 0;               // this rank
  std::uint64_t call = 0;     // counts the calls of this world on this rank, from 1: asynchronous ones overlap
  std::uint64_t attempt = 0;  // the number at the end of its save id, the same on all ranks; 0: not heard yet
  WallTime time;              // when it happened, not when it is told
  Duration elapsed{0};        // since the trainer called, by a clock that is never set
  std::uint64_t bytes = 0;    // of tensors that this rank writes or reads; 0 until the plan is known
};

// This rank has come to the next phase of its own part. Of `kFinish`: its part is done, and it waits for the others and the coordinator.
struct CallPhase : CallEvent {
  Phase phase = Phase::kJoin;
};

// One entry of the failure map with which the call ends, told before `on_end`, in the order of the ranks.
struct CallFailed : CallEvent {
  int failed_rank = 0;
  FailureKind kind = FailureKind::kRaised;
  std::optional<Phase> phase;
  std::string code;  // "no_space": of the error, as to_string(ErrorCode) has it
  std::string text;  // type and text of what was thrown; what is longer than 1,024 bytes is cut
};

struct CallEnd : CallEvent {
  bool ok = false;
  bool was_cancelled = false;                 // not ok, for no other reason than that callers cancelled it
  Committed committed = Committed::kUnknown;  // whether the checkpoint exists
  std::string save_id;                        // "" of a call that was no attempt
  std::map<Phase, Duration> phases;           // how long this rank was in each
};

class CallListener {
 public:
  virtual ~CallListener() = default;
  virtual void on_start(const CallEvent&) {}
  virtual void on_phase(const CallPhase&) {}
  virtual void on_failure(const CallFailed&) {}
  // Exactly once for each `on_start`, unless events were dropped.
  virtual void on_end(const CallEnd&) {}
};

}  // namespace cairn
