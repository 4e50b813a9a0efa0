// The messages between the actors of one rank. Most are sent as Traced<T>.
#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <string>

#include <cairn/actors/protocol/events.hpp>
#include <cairn/base/observer.hpp>
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

// runtime -> supervisor -> coordinator: cancel all calls, then stop.
struct Stop {
  // Set when the supervisor ends: once all calls have ended, or at StopNow. The coordinator gets
  // none.
  std::shared_ptr<std::promise<void>> stopped;
};
// runtime -> supervisor: the Orders have changed.
struct TakeOrders {};
// runtime -> supervisor: stop now, even if calls are running.
struct StopNow {};

// An actor -> itself: the next deadline of its TimerQueue has passed.
struct WakeUp {};

// Describe a message in the events of its sending and handling. Return false if it is not traced.
bool describe(const StartCall& start, ObservedEvent& event);
bool describe(const Request& request, ObservedEvent& event);
inline bool describe(const protocol::Message& body, ObservedEvent& event) {
  event.what = protocol::kind_of(body);
  return !protocol::is_of_progress(body);
}
// `name` must never be freed. `checkpointer`: "" for a message about no call.
inline bool describe_as(const char* name, const std::string& checkpointer, ObservedEvent& event, std::uint64_t attempt = 0) {
  event.name = name;
  event.attempt = attempt;
  event.checkpointer = checkpointer_key(checkpointer);  // 0 for ""
  return true;
}
inline bool describe(const CancelCall& cancel, ObservedEvent& event) {
  event.call = cancel.request.ticket;
  return describe_as("CancelCall", cancel.checkpointer, event);
}
inline bool describe(const TaskReport& report, ObservedEvent& event) {
  return describe_as(protocol::name_of(report.ended.result), report.checkpointer, event, report.counter);
}
inline bool describe(const CoordinatorEvent& told, ObservedEvent& event) {
  if (const auto* received = std::get_if<protocol::Received>(&told.event))
    return describe_as("", told.checkpointer, event, received->counter) && describe(received->body, event);
  const auto* const task = std::get_if<protocol::TaskEnded>(&told.event);
  const bool is_death = std::holds_alternative<protocol::ActorDied>(told.event);
  const char* const change = std::holds_alternative<protocol::PeerDown>(told.event) ? "PeerDown" : "PeerUp";
  return describe_as(task ? protocol::name_of(task->result) : is_death ? "ActorDied" : change, told.checkpointer, event);
}
inline bool describe(const CoordinatorEffect& asked, ObservedEvent& event) {
  if (const auto* send = std::get_if<protocol::Send>(&asked.effect))
    return describe_as("", asked.checkpointer, event, send->counter) && describe(send->body, event);
  const auto& task = std::get<protocol::RunTask>(asked.effect);
  return describe_as(protocol::name_of(task.task), asked.checkpointer, event, task.counter);
}
inline bool describe(const Unsent& unsent, ObservedEvent& event) { return describe_as("Unsent", unsent.checkpointer, event); }
inline bool describe(const CoordinatorStopped&, ObservedEvent& event) { return describe_as("CoordinatorStopped", "", event); }
inline bool describe(const Stop&, ObservedEvent& event) { return describe_as("Stop", "", event); }

}  // namespace cairn
