// When to log that a wait goes on: first after ten seconds, then each time it has lasted twice as long, at least every five
// minutes.
#pragma once

#include <algorithm>
#include <chrono>
#include <string>

#include <cairn/base/clock.hpp>

namespace cairn {

// Has no clock: the caller passes the time that it has waited.
class WaitNotices {
 public:
  static constexpr Duration kFirst = std::chrono::seconds(10);
  static constexpr Duration kEveryMax = std::chrono::minutes(5);

  explicit WaitNotices(Duration first = kFirst) : next_(first) {}

  Duration next() const { return next_; }  // the time waited at which the next notice is due
  // Returns whether a notice is due; true once for each notice.
  bool is_due(Duration waited) {
    if (waited < next_) return false;
    next_ = waited + std::min(std::max(waited, Duration(1)), kEveryMax);
    return true;
  }

 private:
  Duration next_;
};

// Returns "12 s of 300 s", for texts.
inline std::string in_whole_seconds(Duration waited, Duration limit) {
  const auto seconds = [](Duration time) {
    return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(time).count()) + " s";
  };
  return seconds(waited) + " of " + seconds(limit);
}

}  // namespace cairn
