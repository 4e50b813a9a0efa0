#include <cairn/base/clock.hpp>

namespace cairn {
namespace {

class SystemClock final : public Clock {
 public:
  MonotonicTime now() const override { return std::chrono::time_point_cast<Duration>(std::chrono::steady_clock::now()); }
  WallTime wall_now() const override { return std::chrono::time_point_cast<Duration>(std::chrono::system_clock::now()); }
};

}  // namespace

const Clock& system_clock() {
  // Never destroyed, because threads may still read the time while static objects are destroyed.
  static const SystemClock& clock = *new SystemClock;
  return clock;
}

}  // namespace cairn
