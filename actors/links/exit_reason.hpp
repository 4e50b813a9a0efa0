// Stores the text of an exception in the exit reason of the actor that the exception terminated.
#pragma once

#include <exception>
#include <string>

#include <caf/error.hpp>

namespace cairn {

// Returns an exit reason that contains the exception's text. Pass this function to CAF's
// `set_exception_handler`.
caf::error exit_reason_of(std::exception_ptr& exception);
// Returns the exception's text, or CAF's description of a reason that contains no such text.
std::string describe_exit(const caf::error& reason);

}  // namespace cairn
