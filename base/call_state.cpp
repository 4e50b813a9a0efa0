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

const char* to_string(MessageKind kind) noexcept {
  switch (kind) {
    case MessageKind::kJoin:
      return "Join";
    case MessageKind::kBegin:
      return "Begin";
    case MessageKind::kLocalSavePlan:
      return "LocalSavePlan";
    case MessageKind::kSameSavePlan:
      return "SameSavePlan";
    case MessageKind::kNeedLocalPlan:
      return "NeedLocalPlan";
    case MessageKind::kGlobalSavePlan:
      return "GlobalSavePlan";
    case MessageKind::kUseCachedPlan:
      return "UseCachedPlan";
    case MessageKind::kNeedGlobalPlan:
      return "NeedGlobalPlan";
    case MessageKind::kWritten:
      return "Written";
    case MessageKind::kLocalLoadPlan:
      return "LocalLoadPlan";
    case MessageKind::kGlobalLoadPlan:
      return "GlobalLoadPlan";
    case MessageKind::kReadDone:
      return "ReadDone";
    case MessageKind::kPhaseFailed:
      return "PhaseFailed";
    case MessageKind::kOutcome:
      return "Outcome";
    case MessageKind::kCancel:
      return "Cancel";
    case MessageKind::kCoordinatorDown:
      return "CoordinatorDown";
    case MessageKind::kStopPhase:
      return "StopPhase";
    case MessageKind::kPhaseStopped:
      return "PhaseStopped";
    case MessageKind::kWithdraw:
      return "Withdraw";
    case MessageKind::kUnreadable:
      return "Unreadable";
    case MessageKind::kStanding:
      return "Standing";
    case MessageKind::kAskStanding:
      return "AskStanding";
    case MessageKind::kFollowOther:
      return "FollowOther";
    case MessageKind::kProgress:
      return "Progress";
    case MessageKind::kJobProgress:
      return "JobProgress";
  }
  return "unknown message";
}

}  // namespace cairn
