// When people are told that a wait goes on: after a while, when it has lasted twice as long, and so on, so that a log stays short.
#pragma once

#include <algorithm>
#include <chrono>
#include <string>

#include <cairn/base/clock.hpp>

namespace cairn {

// No clock: whoever waits says how long it has.
class WaitNotices {
 public:
  static constexpr Duration kFirst = std::chrono::seconds(10);
  static constexpr Duration kEveryMax = std::chrono::minutes(5);

  explicit WaitNotices(Duration first = kFirst) : next_(first) {}

  Duration next() const { return next_; }  // of the wait's time: when it is time to say something
  // Whether it is; true once for each.
  bool is_due(Duration waited) {
    if (waited < next_) return false;
    next_ = waited + std::min(std::max(waited, Duration(1)), kEveryMax);
    return true;
  }

 private:
  Duration next_;
};

// "12 s of 300 s", for texts.
inline std::string in_whole_seconds(Duration waited, Duration limit) {
  const auto seconds = [](Duration time) {
    return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(time).count()) + " s";
  };
  return seconds(waited) + " of " + seconds(limit);
}

}  // namespace cairn
