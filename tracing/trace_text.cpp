#include <cairn/tracing/trace_text.hpp>

#include <chrono>
#include <cstdio>

#include <cairn/base/enum_names.hpp>

namespace cairn {

const char* verb_of(EventKind kind) noexcept {
  static constexpr const char* kNames[] = {"sent",      "handled", "is",  "ended",  "began",      "called",
                                           "was told:", "has the", "did", "was in", "called from"};
  return name_in<EventKind::kFrame>(kNames, kind, "?");
}

namespace {

struct NameOf {
  const ObservedEvent& event;
  std::string operator()(std::monostate) const { return std::string(event.name); }
  std::string operator()(MessageKind kind) const { return to_string(kind); }
  std::string operator()(LinkChange change) const { return to_string(change); }
  std::string operator()(RankState state) const { return std::string("rank: ") + to_string(state); }
  std::string operator()(CoordinatorState state) const { return std::string("coordinator: ") + to_string(state); }
  std::string operator()(SuccessionState state) const { return std::string("succession: ") + to_string(state); }
  std::string operator()(CallTurn turn) const { return to_string(turn); }
  std::string operator()(Timer timer) const { return std::string("timer: ") + to_string(timer); }
  std::string operator()(Restarted restarted) const { return std::string("restart of the ") + to_string(restarted.actor); }
  std::string operator()(Ignored ignored) const {
    return ignored == Ignored::kStoppedTimer ? "timer that was stopped" : std::string(event.name);
  }
  std::string operator()(Operation operation) const { return to_string(operation); }
  std::string operator()(FailureKind kind) const { return to_string(kind); }
  std::string operator()(Committed) const { return "outcome"; }
};

}  // namespace

std::string name_of(const ObservedEvent& event) { return std::visit(NameOf{event}, event.what); }

std::string time_of_day(WallTime time) {
  // UTC, because the ranks of a job may run in several time zones.
  constexpr std::int64_t kDay = 24 * 60 * 60 * 1000;
  const std::int64_t since_epoch = std::chrono::floor<std::chrono::milliseconds>(time).time_since_epoch().count();
  const auto of_day = static_cast<int>((since_epoch % kDay + kDay) % kDay);
  char text[64];
  std::snprintf(text, sizeof text, "%02d:%02d:%02d.%03d", of_day / 3'600'000, of_day / 60'000 % 60, of_day / 1000 % 60,
                of_day % 1000);
  return text;
}

}  // namespace cairn
