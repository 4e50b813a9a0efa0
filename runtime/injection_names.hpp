// What can be named in an injection, and how a program that does not allow any says so. Internal.
#pragma once

#include <cairn/base/injection.hpp>

namespace cairn {

InjectionNames injection_names();

// One line on standard error, once, if CAIRN_INJECT is set and allow_injection was never called. For whoever makes a world.
void warn_of_ignored_injection();

}  // namespace cairn
