// How an actor that a handler threw out of says why it died.
#pragma once

#include <exception>
#include <string>

#include <caf/error.hpp>

namespace cairn {

// For `set_exception_handler`: the exception's text travels in the reason of the actor's end.
caf::error exit_reason_of(std::exception_ptr& exception);
// The text in such a reason, or what CAF says about any other.
std::string describe_exit(const caf::error& reason);

}  // namespace cairn
