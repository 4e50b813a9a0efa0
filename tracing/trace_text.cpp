#include <cairn/tracing/trace_text.hpp>

#include <chrono>
#include <cstdio>
#include <ctime>

namespace cairn {

const char* verb_of(EventKind kind) noexcept {
  switch (kind) {
    case EventKind::kSent:
      return "sent";
    case EventKind::kHandled:
      return "handled";
    case EventKind::kState:
      return "is";
    case EventKind::kOperation:
      return "ended";
    case EventKind::kBegan:
      return "began";
    case EventKind::kCall:
      return "called";
    case EventKind::kFailure:
      return "was told:";
    case EventKind::kOutcome:
      return "has the";
    case EventKind::kStore:
      return "did";
  }
  return "?";
}

std::string time_of_day(WallTime time) {
  const auto milliseconds = std::chrono::floor<std::chrono::milliseconds>(time);
  const auto seconds = std::chrono::floor<std::chrono::seconds>(milliseconds);
  const std::time_t since_epoch = seconds.time_since_epoch().count();
  std::tm parts{};
  // UTC, because the ranks of a job may run in several time zones.
  ::gmtime_r(&since_epoch, &parts);
  char text[64];
  std::snprintf(text, sizeof text, "%02d:%02d:%02d.%03d", parts.tm_hour, parts.tm_min, parts.tm_sec,
                static_cast<int>((milliseconds - seconds).count()));
  return text;
}

}  // namespace cairn
