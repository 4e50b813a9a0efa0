#include <cairn/base/units.hpp>

#include <cmath>
#include <cstdio>

namespace cairn {
namespace {

std::string formatted(const char* format, double amount, const char* unit) {
  char text[400];  // a double has at most 309 digits before the point
  std::snprintf(text, sizeof text, format, amount, unit);
  return text;
}

}  // namespace

std::string human_bytes(std::uint64_t bytes) {
  if (bytes < 1024) return std::to_string(bytes) + " B";
  static constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  const char* const* unit = kUnits;
  double amount = static_cast<double>(bytes) / 1024;
  for (; amount >= 1024; ++unit) amount /= 1024;
  return formatted("%.1f %s", amount, *unit);
}

std::string human_duration(std::chrono::nanoseconds duration) {
  const double seconds = std::chrono::duration<double>(duration).count();
  if (std::abs(seconds) >= 1) return formatted("%.2f %s", seconds, "s");
  if (std::abs(seconds) >= 1e-3) return formatted("%.1f %s", seconds * 1e3, "ms");
  return formatted("%.0f %s", seconds * 1e6, "us");
}

}  // namespace cairn
