#include <cairn/runtime/observation/progress.hpp>

namespace cairn {

const char* to_string(SaveProgress::Step step) noexcept {
  switch (step) {
    case SaveProgress::Step::kStaging:
      return "staging";
    case SaveProgress::Step::kQueued:
      return "queued";
    case SaveProgress::Step::kPlanning:
      return "planning";
    case SaveProgress::Step::kWriting:
      return "writing";
    case SaveProgress::Step::kPublishing:
      return "publishing";
    case SaveProgress::Step::kDone:
      return "done";
  }
  return "unknown";
}

}  // namespace cairn
