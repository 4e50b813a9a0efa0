// Adds to an exception of user code the place where it was thrown. Internal.
#pragma once

#include <exception>
#include <string>

namespace cairn {

// Thrown instead of `exception`. `capture_failure` returns the failure of `exception`, with a text
// that begins with the place. Does not derive from std::exception, because nothing else needs the
// place.
struct PlacedException {
  std::string place;  // 'state_dict() of "sampler"'
  std::exception_ptr exception;
};

}  // namespace cairn
