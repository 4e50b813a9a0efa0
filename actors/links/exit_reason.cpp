#include <cairn/actors/links/exit_reason.hpp>

#include <caf/exit_reason.hpp>
#include <caf/message.hpp>
#include <caf/sec.hpp>

#include <cairn/base/failure.hpp>

namespace cairn {

caf::error exit_reason_of(std::exception_ptr& exception) {
  const Failure failure = capture_failure(0, Phase::kJoin, "", exception);
  return caf::make_error(caf::sec::runtime_error, failure.type + ": " + failure.what);
}

std::string describe_exit(const caf::error& reason) {
  if (reason == caf::sec::runtime_error && reason.context().match_elements<std::string>())
    return reason.context().get_as<std::string>(0);
  return "exit reason " + std::string(caf::to_string(reason));
}

}  // namespace cairn
