// Texts that describe events to people, and the last values of the enumerations in events.
#pragma once

#include <optional>
#include <string>

#include <cairn/base/observer.hpp>

namespace cairn {

// Returns the verb for an event of this kind in the texts of `cairn trace`: "sent", "handled".
const char* verb_of(EventKind kind) noexcept;

// Returns the text of `value`, or "" if `value` is empty (unknown).
template <class Enum>
std::string text_of(const std::optional<Enum>& value) {
  return value ? to_string(*value) : "";
}

// Returns what the event is about: ObservedEvent::what in words ("Written", "rank: moving") or, if
// `what` says nothing, ObservedEvent::name ("write_data").
std::string name_of(const ObservedEvent& event);

// The last value of each enumeration that traces contain. The first value is always 1. Readers
// treat larger values as unknown.
constexpr Actor last_of(Actor) { return Actor::kLinks; }
constexpr CallTurn last_of(CallTurn) { return CallTurn::kResigned; }
constexpr Committed last_of(Committed) { return Committed::kUnknown; }
constexpr CoordinatorState last_of(CoordinatorState) { return CoordinatorState::kDeciding; }
constexpr ErrorCode last_of(ErrorCode) { return ErrorCode::kInternal; }
constexpr EventKind last_of(EventKind) { return EventKind::kFrame; }
constexpr FailureKind last_of(FailureKind) { return FailureKind::kInternal; }
constexpr Ignored last_of(Ignored) { return Ignored::kStoppedTimer; }
constexpr LinkChange last_of(LinkChange) { return LinkChange::kLeft; }
constexpr MessageKind last_of(MessageKind) { return MessageKind::kJobProgress; }
constexpr Operation last_of(Operation) { return Operation::kAgree; }
constexpr Phase last_of(Phase) { return Phase::kFinish; }
constexpr RankState last_of(RankState) { return RankState::kEnding; }
constexpr SuccessionState last_of(SuccessionState) { return SuccessionState::kAskingStore; }
constexpr Timer last_of(Timer) { return Timer::kWaiting; }
template <class Enum>
inline constexpr Enum kLastOf = last_of(Enum{});

std::string time_of_day(WallTime time);  // "12:00:01.234", UTC

}  // namespace cairn
