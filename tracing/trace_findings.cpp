#include <cairn/tracing/trace_findings.hpp>

#include <cairn/base/enum_names.hpp>
#include <cairn/base/failure.hpp>
#include <cairn/base/units.hpp>

namespace cairn {

std::string subject_text(const TracedStoreOperation& operation) {
  if (operation.name == "stage") return "the copy of its state";
  if (operation.name == "remove_old") return "the removal of old checkpoints";
  return operation.name + " of its store";
}

std::string describe(const TracedStoreOperation& operation) {
  std::string text = subject_text(operation) + " took " + human_duration(operation.duration);
  if (!operation.object.empty()) text += ": " + operation.object;
  if (operation.bytes == 0) return text;
  const double rate = static_cast<double>(operation.bytes) / std::chrono::duration<double>(operation.duration).count();
  return text + ", " + human_bytes(operation.bytes) + ", " + human_bytes(static_cast<std::uint64_t>(rate)) + "/s";
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
