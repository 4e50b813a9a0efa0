// The hook that traces and metrics use: every message between actors passes one observer per rank, where it is sent and where it
// is handled.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include <cairn/base/clock.hpp>
#include <cairn/base/failure.hpp>

namespace cairn {

enum class EventKind : std::uint8_t {
  kSent = 1,   // a message left an actor
  kHandled,    // a message was handled; `duration` is the handler's
  kState,      // a state machine changed state, which `name` says; or it ignored something, for which `name` is the reason
  kOperation,  // a store operation or hook ended; `duration` is its own
  kBegan,      // a hook began: one without its kOperation has not ended
  kCall,  // the trainer called: `name` is "save", "load" or "agreement", `text` the checkpoint's id, `number` the call's number
  kFailure,  // one entry of the failure map that a call has ended with: `peer` is whose, -1 this rank's own; `name` its kind, `detail`
             // its code, `number` its position in that rank's trace, `text` the exception's type and text
  kOutcome,  // a call has ended on this rank; `detail` says whether the checkpoint exists, `text` the save id
  kDecision,  // a state machine was given an event, which `name` says: `before` and `detail` are its states before and after, `number` a
              // digest of the event and of what the machine decided; not `ok`: it could not go on
  kStore,  // an operation of a store that took long, or failed, has ended: `name` says which, `text` on what, and what was thrown;
           // `detail` is the error's code; on whatever thread that was
};

// Longer texts are cut.
inline constexpr std::size_t kEventTextMax = 1024;

// Borrowed for the call. Names are those of types, states and actors, and live for ever; `text` and `content` do not. What never
// is in an event: tensor data, secrets, values of the user's metadata. What is: ids of checkpoints, and the texts of exceptions.
struct ObservedEvent {
  EventKind kind = EventKind::kSent;
  MonotonicTime time;  // when it was recorded: of handlers and operations, their end
  WallTime wall_time;
  std::uint64_t attempt = 0;       // the attempt's counter, 0 outside attempts
  std::uint32_t checkpointer = 0;  // CRC-32 of its checkpointer's name, as in save ids; 0: of none, or of all
  int rank = 0;
  int peer = -1;               // the other rank, -1 within one rank
  std::optional<Phase> phase;  // of hooks and failures
  std::string_view actor;      // who sent or handled it
  std::string_view name;       // message type, state change or operation
  std::string_view detail;     // see kFailure, kOutcome, kDecision and kStore
  std::string_view before;     // see kDecision
  std::string_view text;       // at most kEventTextMax bytes
  // Of kDecision where everything is recorded: the event itself and what was decided, so that both can be gone through again
  // (actors/recording). Of any size; in files only, never in a ring.
  std::string_view content;
  std::uint64_t number = 0;    // see kCall, kFailure and kDecision
  std::uint64_t bytes = 0;     // of the message's frame or of the operation's data, 0 for local messages
  std::uint64_t id = 0;        // of this event: increases by one per event of a rank, from 1
  // Id of the event that led to this one, 0 if none: of the sending, for what was handled; in the trace of `peer`, for a message of
  // another rank.
  std::uint64_t cause = 0;
  Duration duration{0};
  Duration queued{0};  // of messages within a rank: from sending until the handler began
  bool ok = true;
};

class Observer {
 public:
  virtual ~Observer() = default;
  // Called from many threads at once; must be fast and must not throw.
  virtual void on_event(const ObservedEvent& event) noexcept = 0;
};

}  // namespace cairn
