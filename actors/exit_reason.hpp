// Carries the text of an exception that ended an actor in the actor's exit reason.
#pragma once

#include <exception>
#include <string>

#include <caf/error.hpp>

namespace cairn {

// Returns the exit reason that carries the exception's text. For `set_exception_handler`.
caf::error exit_reason_of(std::exception_ptr& exception);
// Returns the text in such a reason, or CAF's description of any other reason.
std::string describe_exit(const caf::error& reason);

}  // namespace cairn
