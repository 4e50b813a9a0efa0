#include <cairn/base/call_state.hpp>

#include <cairn/base/enum_names.hpp>

namespace cairn {

const char* to_string(Operation operation) noexcept {
  static constexpr const char* kNames[] = {"save", "load", "agreement"};
  return name_in<Operation::kAgree>(kNames, operation, "unknown operation");
}

const char* to_string(RankState state) noexcept {
  static constexpr const char* kNames[] = {"idle", "joining", "preparing", "planned", "moving", "reported", "ending"};
  return name_in<RankState::kEnding>(kNames, state, "unknown state");
}

const char* to_string(CoordinatorState state) noexcept {
  static constexpr const char* kNames[] = {"idle",   "joining",   "local plans", "global plan",
                                           "moving", "finishing", "settling",    "deciding"};
  return name_in<CoordinatorState::kDeciding>(kNames, state, "unknown state");
}

const char* to_string(SuccessionState state) noexcept {
  static constexpr const char* kNames[] = {"idle", "gathering", "asking the store"};
  return name_in<SuccessionState::kAskingStore>(kNames, state, "unknown state");
}

const char* to_string(CallTurn turn) noexcept {
  static constexpr const char* kNames[] = {"lost its coordinator", "found its coordinator again",
                                           "gave up the call: this process stood still"};
  return name_in<CallTurn::kResigned>(kNames, turn, "unknown turn");
}

const char* to_string(Timer timer) noexcept {
  static constexpr const char* kNames[] = {"the coordinator's answer",    "the ranks' answers",    "a sign of life",
                                           "answers to the successor",    "the caller's deadline", "progress",
                                           "the warning of missing ranks"};
  return name_in<Timer::kWaiting>(kNames, timer, "unknown timer");
}

const char* to_string(MessageKind kind) noexcept {
  static constexpr const char* kNames[] = {"Join",           "Begin",    "LocalSavePlan", "SameSavePlan",    "NeedLocalPlan",
                                           "GlobalSavePlan", "Written",  "LocalLoadPlan", "GlobalLoadPlan",  "ReadDone",
                                           "PhaseFailed",    "Outcome",  "Cancel",        "CoordinatorDown", "StopPhase",
                                           "PhaseStopped",   "Withdraw", "Unreadable",    "StatusReply",     "StatusRequest",
                                           "FollowOther",    "Progress", "JobProgress"};
  return name_in<MessageKind::kJobProgress>(kNames, kind, "unknown message");
}

}  // namespace cairn
