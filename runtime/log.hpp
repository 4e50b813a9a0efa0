// What the library has to say to people, when nobody asked. Rare: errors are exceptions, and what happens is in the trace. Internal.
#pragma once

#include <string>

namespace cairn {

// Through spdlog's logger "cairn": the program's, if it has registered one, else to standard error. Thread-safe.
void log_warning(const std::string& text);

}  // namespace cairn
