#include <cairn/tracing/trace_text.hpp>

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

}  // namespace cairn
