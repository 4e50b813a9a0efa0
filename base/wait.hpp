// Limits the duration of waits.
#pragma once

#include <algorithm>
#include <chrono>

namespace cairn {

// Longer waits are cut to this value. A caller may pass std::chrono::milliseconds::max() for "no
// limit"; adding that value to a time or to another wait would overflow.
inline constexpr std::chrono::hours kWaitMax{24 * 365};

constexpr std::chrono::milliseconds bounded_wait(std::chrono::milliseconds wait) {
  return std::min<std::chrono::milliseconds>(wait, kWaitMax);
}

}  // namespace cairn
