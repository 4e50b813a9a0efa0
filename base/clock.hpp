// The interface for time. Code that waits or takes timestamps gets a Clock; simulations pass a
// virtual one.
#pragma once

#include <chrono>

namespace cairn {

using Duration = std::chrono::nanoseconds;
using MonotonicTime = std::chrono::time_point<std::chrono::steady_clock, Duration>;
using WallTime = std::chrono::time_point<std::chrono::system_clock, Duration>;

class Clock {
 public:
  virtual ~Clock() = default;
  virtual MonotonicTime now() const = 0;
  virtual WallTime wall_now() const = 0;
};

// Returns a Clock that reads the operating system's clocks. Thread-safe; never destroyed.
const Clock& system_clock();

}  // namespace cairn
