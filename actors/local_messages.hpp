// The messages between the actors of one rank. Most are sent as Traced<T>.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <cairn/actors/protocol/events.hpp>
#include <cairn/base/mutex.hpp>
#include <cairn/base/save_id.hpp>
#include <cairn/messages/control.hpp>

namespace cairn {

class CallContext;
class TaskRun;

// The trainer has started a call. The runtime puts it into the supervisor's Orders.
struct StartCall {
  std::shared_ptr<CallContext> context;
};

// runtime -> supervisor: the caller wants to cancel this call.
struct CancelCall {
  std::string checkpointer;
  protocol::CancelRequested request;
};

// supervisor -> planner, storage: run this task of the call.
struct Request {
  protocol::Task task;
  std::shared_ptr<TaskRun> run;
};

// planner, storage, executor or writer thread -> supervisor: the task has ended. The supervisor
// passes this to the state machine that requested the task.
struct TaskReport {
  std::string checkpointer;
  // The requester: 0 for this rank's RankMachine, otherwise the `life` of the coordinator actor
  // (see spawn_coordinator).
  std::uint64_t coordinator = 0;
  std::uint64_t counter = 0;
  protocol::TaskEnded ended;
};

// supervisor -> coordinator: an event for the machine of this checkpointer, or for all machines.
struct CoordinatorEvent {
  std::string checkpointer;
  protocol::Event event;
  bool is_for_all = false;
};

// coordinator -> supervisor: send this message, or run this task. `life` numbers the coordinator
// actors of a rank: 1 for the first, 2 for the one after it. Those of a dead one are ignored.
struct CoordinatorEffect {
  std::uint64_t life = 0;
  std::string checkpointer;
  protocol::Effect effect;
};
// coordinator -> supervisor: the answer to Stop. The coordinator has cancelled its calls, and sends
// nothing after this message.
struct CoordinatorStopped {};

// supervisor -> itself: a message of this checkpointer to rank `down.rank` could not be encoded.
struct Unsent {
  std::string checkpointer;
  protocol::PeerDown down;
};

// Set when the supervisor ends: once all calls have ended, or at StopNow.
struct StopLatch {
  Mutex mutex;
  CondVar changed;
  bool stopped CAIRN_GUARDED_BY(mutex) = false;

  void set() {
    const MutexLock lock(mutex);
    stopped = true;
    changed.notify_all();
  }
};
// runtime -> supervisor -> coordinator: cancel all calls, then stop. The coordinator gets no latch.
struct Stop {
  std::shared_ptr<StopLatch> latch;
};
// runtime -> supervisor: the Orders have changed.
struct TakeOrders {};
// runtime -> supervisor: stop now, even if calls are running.
struct StopNow {};

// Returns null for messages that are not traced.
inline const char* trace_name_of(const protocol::Message& body) {
  return protocol::is_of_progress(body) ? nullptr : protocol::name_of(body);
}

// An actor -> itself: the next deadline of its TimerQueue has passed.
struct WakeUp {};

inline const char* trace_name(const StartCall&) { return "StartCall"; }
inline const char* trace_name(const CancelCall&) { return "CancelCall"; }
inline const char* trace_name(const Request& request) { return protocol::name_of(request.task); }
inline const char* trace_name(const TaskReport& report) { return protocol::name_of(report.ended.result); }
inline const char* trace_name(const CoordinatorEvent& event) {
  if (const auto* received = std::get_if<protocol::Received>(&event.event)) return trace_name_of(received->body);
  if (const auto* task = std::get_if<protocol::TaskEnded>(&event.event)) return protocol::name_of(task->result);
  if (std::holds_alternative<protocol::ActorDied>(event.event)) return "ActorDied";
  return std::holds_alternative<protocol::PeerDown>(event.event) ? "PeerDown" : "PeerUp";
}
inline const protocol::Send* send_of(const CoordinatorEffect& effect) { return std::get_if<protocol::Send>(&effect.effect); }
inline const char* trace_name(const CoordinatorEffect& effect) {
  if (const auto* send = send_of(effect)) return trace_name_of(send->body);
  return protocol::name_of(std::get<protocol::RunTask>(effect.effect).task);
}
inline const char* trace_name(const CoordinatorStopped&) { return "CoordinatorStopped"; }
inline const char* trace_name(const Unsent&) { return "Unsent"; }
inline const char* trace_name(const Stop&) { return "Stop"; }

inline What trace_what(const CoordinatorEvent& event) {
  const auto* received = std::get_if<protocol::Received>(&event.event);
  return received ? protocol::kind_of(received->body) : What();
}
inline What trace_what(const CoordinatorEffect& effect) {
  const auto* send = send_of(effect);
  return send ? protocol::kind_of(send->body) : What();
}

std::uint64_t trace_call(const StartCall& start);
inline std::uint64_t trace_call(const CancelCall& cancel) { return cancel.request.ticket; }

inline std::uint64_t trace_attempt(const TaskReport& report) { return report.counter; }
inline std::uint64_t trace_attempt(const CoordinatorEvent& event) {
  const auto* received = std::get_if<protocol::Received>(&event.event);
  return received ? received->counter : 0;
}
inline std::uint64_t trace_attempt(const CoordinatorEffect& effect) {
  const auto* send = send_of(effect);
  return send ? send->counter : std::get<protocol::RunTask>(effect.effect).counter;
}

std::uint32_t trace_checkpointer(const StartCall& start);
inline std::uint32_t trace_checkpointer(const CancelCall& cancel) { return checkpointer_key(cancel.checkpointer); }
inline std::uint32_t trace_checkpointer(const TaskReport& report) { return checkpointer_key(report.checkpointer); }
inline std::uint32_t trace_checkpointer(const CoordinatorEvent& event) { return checkpointer_key(event.checkpointer); }
inline std::uint32_t trace_checkpointer(const CoordinatorEffect& effect) { return checkpointer_key(effect.checkpointer); }
inline std::uint32_t trace_checkpointer(const Unsent& unsent) { return checkpointer_key(unsent.checkpointer); }

}  // namespace cairn
