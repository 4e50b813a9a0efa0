// Texts that describe events to people.
#pragma once

#include <optional>
#include <string>

#include <cairn/base/observer.hpp>

namespace cairn {

// Returns the verb for an event's actor that `cairn trace` and ring dumps use: "sent", "handled".
const char* verb_of(EventKind kind) noexcept;

// Returns the text of a value that may be unknown, otherwise "".
template <class Enum>
std::string text_of(const std::optional<Enum>& value) {
  return value ? to_string(*value) : "";
}

// Returns the event's subject, in words: "Written", "rank: moving", "write_data".
std::string name_of(const ObservedEvent& event);

std::string time_of_day(WallTime time);  // "12:00:01.234", UTC

}  // namespace cairn
