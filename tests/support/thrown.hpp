// The error that a call throws, as a value to compare. Include a test framework header first.
#pragma once

#include <string>

#include <cairn/base/error.hpp>

namespace cairn::testing {

struct Thrown {
  bool is_error = false;
  ErrorCode code = ErrorCode::kInternal;
  std::string what;

  bool says(const std::string& text) const { return what.find(text) != std::string::npos; }
};

template <class Call>
Thrown thrown_by(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return {true, error.code(), error.what()};
  }
  return {};
}

// Returns whether hostile input was rejected as corrupt or unsupported, and not as an internal
// error or a caller's mistake.
inline bool is_refusal(const Thrown& thrown) {
  return thrown.is_error && (thrown.code == ErrorCode::kCorrupt || thrown.code == ErrorCode::kUnsupported);
}

}  // namespace cairn::testing
