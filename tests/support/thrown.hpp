// The error that a call throws, as a value to compare. Include a test framework header first.
#pragma once

#include <ostream>
#include <string>

#include <cairn/base/error.hpp>

namespace cairn::testing {

struct Thrown {
  bool is_error = false;
  ErrorCode code = ErrorCode::kInternal;
  std::string what;

  bool says(const std::string& text) const { return what.find(text) != std::string::npos; }
};

// The code that an error must have, and a part of its text.
struct Saying {
  ErrorCode code;
  std::string part;
};
inline bool operator==(const Thrown& thrown, const Saying& wanted) {
  return thrown.is_error && thrown.code == wanted.code && thrown.says(wanted.part);
}
// For the messages of failed checks.
inline std::ostream& operator<<(std::ostream& out, const Thrown& thrown) {
  return out << to_string(thrown.code) << ": " << thrown.what;
}
inline std::ostream& operator<<(std::ostream& out, const Saying& wanted) {
  return out << to_string(wanted.code) << ": " << wanted.part;
}

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
