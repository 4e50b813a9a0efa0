// How events are told to people.
#pragma once

#include <cairn/base/observer.hpp>

namespace cairn {

// What the actor of an event has done, as `cairn trace` and the dump of a ring say it: "sent", "handled".
const char* verb_of(EventKind kind) noexcept;

}  // namespace cairn
