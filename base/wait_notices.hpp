// Decides when to log that a wait is still going on: first after ten seconds, then every 30
// seconds.
#pragma once

#include <chrono>
#include <string>

#include <cairn/base/clock.hpp>

namespace cairn {

// Has no clock: the caller passes the time waited so far.
class WaitNotices {
 public:
  static constexpr Duration kFirst = std::chrono::seconds(10);
  static constexpr Duration kEvery = std::chrono::seconds(30);

  explicit WaitNotices(Duration first = kFirst) : next_(first) {}

  Duration next() const { return next_; }  // the waiting time at which the next notice is due
  // Returns whether a notice is due. Returns true once per notice.
  bool is_due(Duration waited) {
    if (waited < next_) return false;
    next_ = waited + kEvery;
    return true;
  }

 private:
  Duration next_;
};

// Returns a text such as "12 s of 300 s".
inline std::string in_whole_seconds(Duration waited, Duration limit) {
  const auto seconds = [](Duration time) {
    return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(time).count()) + " s";
  };
  return seconds(waited) + " of " + seconds(limit);
}

}  // namespace cairn
