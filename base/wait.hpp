// Limits the duration of waits.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

#include <cairn/base/error.hpp>

namespace cairn {

// Longer waits are cut to this value. A caller may pass std::chrono::milliseconds::max() for "no
// limit"; adding that value to a time or to another wait would overflow.
inline constexpr std::chrono::hours kWaitMax{24 * 365};

constexpr std::chrono::milliseconds bounded_wait(std::chrono::milliseconds wait) {
  return std::min<std::chrono::milliseconds>(wait, kWaitMax);
}

// The end of several waits that together may take a given time. Cheap to copy.
class Deadline {
 public:
  // The time counts from now. Negative times are 0.
  template <class Rep, class Period>
  Deadline(std::chrono::duration<Rep, Period> whole)  // NOLINT: implicit, for callers with one wait
      : whole_(std::max(bounded_wait(whole), std::chrono::milliseconds(0))) {}

  std::chrono::milliseconds whole() const { return whole_; }  // for texts
  std::chrono::steady_clock::time_point end() const { return begin_ + whole_; }
  std::chrono::milliseconds left() const {  // 0 once it has passed
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end() - std::chrono::steady_clock::now());
    return std::max(left, std::chrono::milliseconds(0));
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::chrono::milliseconds whole_;
};

// Calls `attempt` until it throws no kUnavailable, or until the deadline. Returns what it returns.
template <class Attempt>
auto retry(const Deadline& deadline, std::chrono::milliseconds pause, const Attempt& attempt) {
  for (;; std::this_thread::sleep_for(pause)) {
    try {
      return attempt();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnavailable || deadline.left() == std::chrono::milliseconds(0)) throw;
    }
  }
}

}  // namespace cairn
