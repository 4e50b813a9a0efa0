// The names of messages, hooks, phases and store operations for CAIRN_INJECT. Internal.
#pragma once

#include <cairn/base/injection.hpp>

namespace cairn {

InjectionNames injection_names();

}  // namespace cairn
