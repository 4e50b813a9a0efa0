// The interface for traces and metrics. A rank may have one observer. It sees each traced message
// between actors when the message is sent and when it is handled. Progress reports are not traced.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <variant>

#include <cairn/base/call_state.hpp>
#include <cairn/base/clock.hpp>
#include <cairn/base/failure.hpp>

namespace cairn {

enum class EventKind : std::uint8_t {
  kSent = 1,   // a message left an actor
  kHandled,    // an actor handled a message; `duration` is how long the handler ran
  kState,      // an actor or one of its state machines changed; `what` names the change
  kOperation,  // a hook ended after `duration`, or an actor's handler threw an exception
  kBegan,      // a hook began; it runs until its kOperation event
  // The trainer made a call: `text` is the checkpoint id. `number` counts a checkpointer's calls.
  kCall,
  // One entry of a failed call's failure map. `peer` is the failed rank, or -1 for this rank.
  // `number` is the id of the failure's event in that rank's trace. `text` is the exception's type
  // and text.
  kFailure,
  // A call ended on this rank. `text` is the save id.
  kOutcome,
  // A store operation ended on some thread, and it was slow or failed. `name` is the operation.
  // `text` is its object and, after a failure, the exception's text.
  kStore,
  // A thread was found in a hook or store operation that had run for `duration`. `name` is the hook
  // or operation, and `text` its object. The stack's kFrame events follow. If `ok` is false, the
  // stack could not be taken, and `text` also says why.
  kStack,
  // A frame of a stack, innermost first. `cause` is the stack's kStack event. `name` is the program
  // or library. `number` is the instruction's offset from the load address of `name`.
  kFrame,
};

enum class Actor : std::uint8_t { kRuntime = 1, kSupervisor, kCoordinator, kPlanner, kStorage, kStore, kLinks };
const char* to_string(Actor actor) noexcept;  // "supervisor"

// A change of the link to another rank. kLeft: the other rank left the world.
enum class LinkChange : std::uint8_t { kUp = 1, kDown, kLeft };
const char* to_string(LinkChange change) noexcept;  // "LinkDown"

// The supervisor replaced an actor that had died.
struct Restarted {
  Actor actor = Actor::kPlanner;

  bool operator==(Restarted other) const { return actor == other.actor; }
  bool operator!=(Restarted other) const { return actor != other.actor; }
};

// The kind of input that an actor ignored.
enum class Ignored : std::uint8_t {
  kInput = 1,     // a message, call, result or connection; `name` is the reason
  kStoppedTimer,  // a timer that fired after it had been stopped
};

// The subject of an event, by the event's kind:
//   kSent, kHandled   the kind of a message between ranks, also if a local message contains it; the
//                     change of a link, if a message reports one; nothing for other messages
//   kState            the new state or milestone, the timer that ran out, the restarted actor, or
//                     the kind of input that was ignored
//   kCall             the operation
//   kFailure          the kind of failure
//   kOutcome          whether the checkpoint exists
// Other events have only a name.
using What = std::variant<std::monostate, MessageKind, LinkChange, RankState, CoordinatorState, SuccessionState, CallTurn, Timer,
                          Restarted, Ignored, Operation, FailureKind, Committed>;

// Event texts longer than this are cut.
inline constexpr std::size_t kEventTextMax = 1024;

// `name` is never freed; `text` is valid only during `on_event`. Events never contain tensor data,
// secrets or values of user metadata. They do contain checkpoint ids and exception texts.
struct ObservedEvent {
  EventKind kind = EventKind::kSent;
  MonotonicTime time;  // when the event was recorded; for handlers and operations, when they ended
  WallTime wall_time;
  // The number, on this rank, of the call that the event belongs to (its ticket). 0: the event
  // belongs to no call, or to an unknown one. Events about messages of other ranks, and events of
  // the coordinator actor, have only `attempt`.
  std::uint64_t call = 0;
  std::uint64_t attempt = 0;       // the attempt's counter, 0 outside attempts
  std::uint32_t checkpointer = 0;  // CRC-32 of the checkpointer's name, as in save ids; 0: no checkpointer, or all
  int rank = 0;
  int peer = -1;               // the other rank, -1 if there is none
  std::optional<Phase> phase;  // set for hooks, failures and stacks
  Actor actor = Actor::kRuntime;  // the actor that sent or handled the message, or did the work
  What what;
  std::optional<ErrorCode> code;  // for kFailure, and for kStore if the operation failed
  std::string_view name;          // name of the local message, hook or store operation, or the reason for Ignored::kInput
  std::string_view text;          // at most kEventTextMax bytes
  std::uint64_t number = 0;  // its meaning depends on `kind`: see EventKind
  std::uint64_t bytes = 0;   // size of the message's frame or of the operation's data, 0 for local messages
  std::uint64_t id = 0;      // this event's id: counts the events of a rank from 1
  // The id of the event that caused this one; 0: none. The cause of a handled message is its kSent
  // event. If another rank sent the message, the id refers to the trace of `peer`.
  std::uint64_t cause = 0;
  Duration duration{0};
  Duration queued{0};  // for messages within a rank: the time between sending and the start of the handler
  bool ok = true;

  // Returns the event's subject if the subject is a `T`, otherwise null.
  template <class T>
  const T* as() const {
    return std::get_if<T>(&what);
  }
  // Returns whether the event's subject equals `subject`: `event.is(RankState::kMoving)`.
  template <class T>
  bool is(T subject) const {
    const T* const it = as<T>();
    return it != nullptr && *it == subject;
  }
};

class Observer {
 public:
  virtual ~Observer() = default;
  // Receives one event. Called from many threads at once; must be fast and must not throw.
  virtual void on_event(const ObservedEvent& event) noexcept = 0;
};

}  // namespace cairn
