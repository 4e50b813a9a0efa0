// The names that an injection may use. Internal.
#pragma once

#include <cairn/base/injection.hpp>

namespace cairn {

InjectionNames injection_names();

}  // namespace cairn
