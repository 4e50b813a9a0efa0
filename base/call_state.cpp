#include <cairn/base/call_state.hpp>

namespace cairn {

const char* to_string(Operation operation) noexcept {
  switch (operation) {
    case Operation::kSave:
      return "save";
    case Operation::kLoad:
      return "load";
    case Operation::kAgree:
      return "agreement";
  }
  return "unknown operation";
}

const char* to_string(RankState state) noexcept {
  switch (state) {
    case RankState::kIdle:
      return "idle";
    case RankState::kJoining:
      return "joining";
    case RankState::kPreparing:
      return "preparing";
    case RankState::kPlanned:
      return "planned";
    case RankState::kMoving:
      return "moving";
    case RankState::kReported:
      return "reported";
    case RankState::kEnding:
      return "ending";
  }
  return "unknown state";
}

const char* to_string(CoordinatorState state) noexcept {
  switch (state) {
    case CoordinatorState::kIdle:
      return "idle";
    case CoordinatorState::kJoining:
      return "joining";
    case CoordinatorState::kLocalPlans:
      return "local plans";
    case CoordinatorState::kGlobalPlan:
      return "global plan";
    case CoordinatorState::kMoving:
      return "moving";
    case CoordinatorState::kFinishing:
      return "finishing";
    case CoordinatorState::kSettling:
      return "settling";
    case CoordinatorState::kDeciding:
      return "deciding";
  }
  return "unknown state";
}

const char* to_string(SuccessionState state) noexcept {
  switch (state) {
    case SuccessionState::kIdle:
      return "idle";
    case SuccessionState::kGathering:
      return "gathering";
    case SuccessionState::kAskingStore:
      return "asking the store";
  }
  return "unknown state";
}

const char* to_string(CallTurn turn) noexcept {
  switch (turn) {
    case CallTurn::kCoordinatorLost:
      return "lost its coordinator";
    case CallTurn::kCoordinatorFound:
      return "found its coordinator again";
    case CallTurn::kResigned:
      return "gave up the call: this process stood still";
  }
  return "unknown turn";
}

const char* to_string(Timer timer) noexcept {
  switch (timer) {
    case Timer::kAnswer:
      return "the coordinator's answer";
    case Timer::kPhase:
      return "the ranks' answers";
    case Timer::kProbe:
      return "a sign of life";
    case Timer::kSuccession:
      return "answers to the successor";
    case Timer::kCall:
      return "the caller's deadline";
    case Timer::kProgress:
      return "progress";
    case Timer::kWaiting:
      return "the warning of missing ranks";
  }
  return "unknown timer";
}

}  // namespace cairn
