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

// runtime -> supervisor: the trainer has started a call.
struct StartCall {
  std::shared_ptr<CallContext> context;
};

// runtime -> supervisor: the caller wants to cancel this call.
struct CancelCall {
  std::string checkpointer;
  protocol::CancelRequested request;
};

// supervisor -> planner, storage: run this task of the call. There is one message type for each
// alternative of the variant protocol::Task.
template <class Task>
struct Request {
  Task task;
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

// supervisor -> coordinator: an event for the machine of this checkpointer.
struct CoordinatorEvent {
  std::string checkpointer;
  protocol::Event event;
};
// supervisor -> coordinator, for all checkpointers: PeerDown or PeerUp.
struct CoordinatorNews {
  protocol::Event event;
};

// coordinator -> supervisor: send this message; run this task.
struct CoordinatorSend {
  std::string checkpointer;
  protocol::Send send;
};
struct CoordinatorTask {
  std::string checkpointer;
  std::uint64_t coordinator = 0;
  protocol::RunTask task;
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
template <class Task>
const char* trace_name(const Request<Task>&) {
  return Task::kName;
}
inline const char* trace_name(const TaskReport& report) { return protocol::name_of(report.ended.result); }
inline const char* trace_name(const CoordinatorEvent& event) {
  if (const auto* received = std::get_if<protocol::Received>(&event.event)) return trace_name_of(received->body);
  if (const auto* task = std::get_if<protocol::TaskEnded>(&event.event)) return protocol::name_of(task->result);
  return "PeerDown";
}
inline const char* trace_name(const CoordinatorNews& news) {
  return std::holds_alternative<protocol::PeerDown>(news.event) ? "PeerDown" : "PeerUp";
}
inline const char* trace_name(const CoordinatorSend& send) { return trace_name_of(send.send.body); }
inline const char* trace_name(const CoordinatorTask& task) { return protocol::name_of(task.task.task); }
inline const char* trace_name(const CoordinatorStopped&) { return "CoordinatorStopped"; }
inline const char* trace_name(const Unsent&) { return "Unsent"; }
inline const char* trace_name(const Stop&) { return "Stop"; }

inline What trace_what(const CoordinatorEvent& event) {
  const auto* received = std::get_if<protocol::Received>(&event.event);
  return received ? protocol::kind_of(received->body) : What();
}
inline What trace_what(const CoordinatorSend& send) { return protocol::kind_of(send.send.body); }

std::uint64_t trace_call(const StartCall& start);
inline std::uint64_t trace_call(const CancelCall& cancel) { return cancel.request.ticket; }

inline std::uint64_t trace_attempt(const TaskReport& report) { return report.counter; }
inline std::uint64_t trace_attempt(const CoordinatorEvent& event) {
  const auto* received = std::get_if<protocol::Received>(&event.event);
  return received ? received->counter : 0;
}
inline std::uint64_t trace_attempt(const CoordinatorSend& send) { return send.send.counter; }
inline std::uint64_t trace_attempt(const CoordinatorTask& task) { return task.task.counter; }

std::uint32_t trace_checkpointer(const StartCall& start);
inline std::uint32_t trace_checkpointer(const CancelCall& cancel) { return checkpointer_key(cancel.checkpointer); }
inline std::uint32_t trace_checkpointer(const TaskReport& report) { return checkpointer_key(report.checkpointer); }
inline std::uint32_t trace_checkpointer(const CoordinatorEvent& event) { return checkpointer_key(event.checkpointer); }
inline std::uint32_t trace_checkpointer(const CoordinatorSend& send) { return checkpointer_key(send.checkpointer); }
inline std::uint32_t trace_checkpointer(const CoordinatorTask& task) { return checkpointer_key(task.checkpointer); }
inline std::uint32_t trace_checkpointer(const Unsent& unsent) { return checkpointer_key(unsent.checkpointer); }

}  // namespace cairn
