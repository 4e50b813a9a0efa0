// Stores the text of an exception in the exit reason of the actor that it terminated.
#pragma once

#include <exception>
#include <string>

#include <caf/error.hpp>

namespace cairn {

// Returns the exit reason that carries the exception's text. For `set_exception_handler`.
caf::error exit_reason_of(std::exception_ptr& exception);
// Returns the exception's text, or CAF's description of a reason that carries none.
std::string describe_exit(const caf::error& reason);

}  // namespace cairn
