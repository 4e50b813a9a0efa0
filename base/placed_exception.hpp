// Says where an exception of user code was thrown. Internal.
#pragma once

#include <exception>
#include <string>

namespace cairn {

// Is thrown in place of `exception`. `capture_failure` returns the failure of `exception`, with a
// text that begins with the place. Is no std::exception, because nothing else needs the place.
struct PlacedException {
  std::string place;  // 'state_dict() of "sampler"'
  std::exception_ptr exception;
};

}  // namespace cairn
