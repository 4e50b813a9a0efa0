// Test cases that cannot run on this machine.
#pragma once

#include <string>

#include <cairn/tests/support/plain.hpp>

namespace cairn::testing {

inline constexpr int kSkippedExitCode = 77;  // SKIP_RETURN_CODE in CMake

inline int& skipped_cases() {
  static int count = 0;
  return count;
}

// Reports that this machine cannot run the current test case; the case then returns. A binary that
// has skipped a case, and has no failures, exits with kSkippedExitCode. CTest takes that for a
// failure, unless tests/CMakeLists.txt lists the case under MACHINE or gives the whole entry that
// code as its SKIP_RETURN_CODE.
inline void skip_case(const std::string& why) {
  ++skipped_cases();
  MESSAGE("skipped: " << why);
}

}  // namespace cairn::testing
