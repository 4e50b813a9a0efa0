#include <cairn/tracing/trace_findings.hpp>

#include <cairn/base/failure.hpp>

namespace cairn {

std::string subject_text(const TracedStoreOperation& operation) {
  if (operation.name == "stage") return "the copy of its state";
  if (operation.name == "remove_old") return "the removal of old checkpoints";
  return operation.name + " of its store";
}

std::string kind_text(const TracedFailure& failure) { return failure.kind ? to_string(*failure.kind) : "unfinished"; }

const char* to_string(RankFate fate) noexcept {
  switch (fate) {
    case RankFate::kEnded:
      return "ended";
    case RankFate::kCutOff:
      return "cut_off";
    case RankFate::kFrozen:
      return "frozen";
    case RankFate::kLeft:
      return "left";
    case RankFate::kActorEnded:
      return "actor_ended";
    case RankFate::kUnknown:
      return "unknown";
  }
  return "unknown";
}

const char* to_string(TracedEnd end) noexcept {
  switch (end) {
    case TracedEnd::kSucceeded:
      return "succeeded";
    case TracedEnd::kFailed:
      return "failed";
    case TracedEnd::kCancelled:
      return "cancelled";
    case TracedEnd::kUnfinished:
      return "unfinished";
  }
  return "unknown";
}

}  // namespace cairn
