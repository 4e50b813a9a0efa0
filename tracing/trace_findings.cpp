#include <cairn/tracing/trace_findings.hpp>

#include <cairn/base/enum_names.hpp>
#include <cairn/base/failure.hpp>

namespace cairn {

std::string subject_text(const TracedStoreOperation& operation) {
  if (operation.name == "stage") return "the copy of its state";
  if (operation.name == "remove_old") return "the removal of old checkpoints";
  return operation.name + " of its store";
}

std::string kind_text(const TracedFailure& failure) { return failure.kind ? to_string(*failure.kind) : "unfinished"; }

const char* to_string(RankFate fate) noexcept {
  static constexpr const char* kNames[] = {"unknown", "ended", "cut_off", "frozen", "left", "actor_ended"};
  return name_in<RankFate::kActorEnded>(kNames, fate, "unknown");
}

const char* to_string(TracedEnd end) noexcept {
  static constexpr const char* kNames[] = {"succeeded", "failed", "cancelled", "unfinished", "running"};
  return name_in<TracedEnd::kRunning>(kNames, end, "unknown");
}

}  // namespace cairn
