// The hook that traces and metrics use: every message between actors passes one observer per rank, where it is sent and where it
// is handled.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include <cairn/base/clock.hpp>

namespace cairn {

enum class EventKind : std::uint8_t {
  kSent = 1,   // a message left an actor
  kHandled,    // a message was handled; `duration` is the handler's
  kState,      // a state machine changed state; `name` says from and to
  kOperation,  // a store operation or hook ended; `duration` is its own
};

// Borrowed for the call. Texts are names of types, states and actors, never values of the user's.
struct ObservedEvent {
  EventKind kind = EventKind::kSent;
  MonotonicTime time;
  WallTime wall_time;
  std::uint64_t attempt = 0;  // the attempt's counter, 0 outside attempts
  int rank = 0;
  int peer = -1;              // the other rank, -1 within one rank
  std::string_view actor;     // who sent or handled it
  std::string_view name;      // message type, state change or operation
  std::uint64_t bytes = 0;    // of the message's frame or of the operation's data, 0 for local messages
  std::uint64_t id = 0;       // of this event: increases by one per event of a rank, from 1
  std::uint64_t cause = 0;    // id of the event that led to this one, 0 if none
  Duration duration{0};
  bool ok = true;
};

class Observer {
 public:
  virtual ~Observer() = default;
  // Called from many threads at once; must be fast and must not throw.
  virtual void on_event(const ObservedEvent& event) noexcept = 0;
};

}  // namespace cairn
