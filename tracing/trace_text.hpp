// Texts that describe events to people.
#pragma once

#include <cairn/base/observer.hpp>

namespace cairn {

// Returns the verb for an event's actor that `cairn trace` and ring dumps use: "sent", "handled".
const char* verb_of(EventKind kind) noexcept;

}  // namespace cairn
