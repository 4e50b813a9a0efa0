// The seam for time. Everything that waits or stamps takes one of these; simulated worlds pass a virtual clock.
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

// The machine's clocks. Thread-safe, lives for ever.
const Clock& system_clock();

}  // namespace cairn
