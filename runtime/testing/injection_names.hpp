// The names that an injection may use, and the warning for programs that do not allow injection.
// Internal.
#pragma once

#include <cairn/base/injection.hpp>

namespace cairn {

InjectionNames injection_names();

// Called wherever a world is made. Prints one line on standard error, once, if CAIRN_INJECT is set
// and allow_injection was never called.
void warn_of_ignored_injection();

}  // namespace cairn
