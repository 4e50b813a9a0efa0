// How long anybody waits.
#pragma once

#include <algorithm>
#include <chrono>

namespace cairn {

// Longer waits count as this one: a caller's "for ever", std::chrono::milliseconds::max(), is to be added to the time of day and to
// other waits without an overflow.
inline constexpr std::chrono::hours kWaitMax{24 * 365};

constexpr std::chrono::milliseconds bounded_wait(std::chrono::milliseconds wait) {
  return std::min<std::chrono::milliseconds>(wait, kWaitMax);
}

}  // namespace cairn
