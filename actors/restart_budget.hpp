// Limits how often an actor that dies is replaced.
#pragma once

#include <chrono>
#include <deque>

#include <cairn/base/clock.hpp>

namespace cairn {

inline constexpr Duration kRestartsWithin = std::chrono::minutes(10);

class RestartBudget {
 public:
  // Returns whether fewer than `restarts_max` restarts were made in the time before `now`. Then
  // counts one more.
  bool take(MonotonicTime now, unsigned restarts_max) {
    while (!taken_.empty() && now - taken_.front() >= kRestartsWithin) taken_.pop_front();
    if (taken_.size() >= restarts_max) return false;
    taken_.push_back(now);
    return true;
  }
  void refill() { taken_.clear(); }

 private:
  std::deque<MonotonicTime> taken_;
};

}  // namespace cairn
