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
template <class Enum>
inline constexpr Enum kLastOf = nullptr;
template <>
inline constexpr Actor kLastOf<Actor> = Actor::kLinks;
template <>
inline constexpr CallTurn kLastOf<CallTurn> = CallTurn::kResigned;
template <>
inline constexpr Committed kLastOf<Committed> = Committed::kUnknown;
template <>
inline constexpr CoordinatorState kLastOf<CoordinatorState> = CoordinatorState::kDeciding;
template <>
inline constexpr ErrorCode kLastOf<ErrorCode> = ErrorCode::kInternal;
template <>
inline constexpr EventKind kLastOf<EventKind> = EventKind::kFrame;
template <>
inline constexpr FailureKind kLastOf<FailureKind> = FailureKind::kInternal;
template <>
inline constexpr Ignored kLastOf<Ignored> = Ignored::kStoppedTimer;
template <>
inline constexpr LinkChange kLastOf<LinkChange> = LinkChange::kLeft;
template <>
inline constexpr MessageKind kLastOf<MessageKind> = MessageKind::kJobProgress;
template <>
inline constexpr Operation kLastOf<Operation> = Operation::kAgree;
template <>
inline constexpr Phase kLastOf<Phase> = Phase::kFinish;
template <>
inline constexpr RankState kLastOf<RankState> = RankState::kEnding;
template <>
inline constexpr SuccessionState kLastOf<SuccessionState> = SuccessionState::kAskingStore;
template <>
inline constexpr Timer kLastOf<Timer> = Timer::kWaiting;

std::string time_of_day(WallTime time);  // "12:00:01.234", UTC

}  // namespace cairn
