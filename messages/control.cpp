#include <cairn/messages/control.hpp>

#include <utility>

namespace cairn::protocol {
namespace {

struct Kind {
  MessageKind operator()(const Join&) const { return MessageKind::kJoin; }
  MessageKind operator()(const Begin&) const { return MessageKind::kBegin; }
  MessageKind operator()(const LocalSavePlan&) const { return MessageKind::kLocalSavePlan; }
  MessageKind operator()(const SameSavePlan&) const { return MessageKind::kSameSavePlan; }
  MessageKind operator()(const NeedLocalPlan&) const { return MessageKind::kNeedLocalPlan; }
  MessageKind operator()(const GlobalSavePlan&) const { return MessageKind::kGlobalSavePlan; }
  MessageKind operator()(const UseCachedPlan&) const { return MessageKind::kUseCachedPlan; }
  MessageKind operator()(const NeedGlobalPlan&) const { return MessageKind::kNeedGlobalPlan; }
  MessageKind operator()(const Written&) const { return MessageKind::kWritten; }
  MessageKind operator()(const LocalLoadPlan&) const { return MessageKind::kLocalLoadPlan; }
  MessageKind operator()(const GlobalLoadPlan&) const { return MessageKind::kGlobalLoadPlan; }
  MessageKind operator()(const ReadDone&) const { return MessageKind::kReadDone; }
  MessageKind operator()(const PhaseFailed&) const { return MessageKind::kPhaseFailed; }
  MessageKind operator()(const Outcome&) const { return MessageKind::kOutcome; }
  MessageKind operator()(const Cancel&) const { return MessageKind::kCancel; }
  MessageKind operator()(const CoordinatorDown&) const { return MessageKind::kCoordinatorDown; }
  MessageKind operator()(const StopPhase&) const { return MessageKind::kStopPhase; }
  MessageKind operator()(const PhaseStopped&) const { return MessageKind::kPhaseStopped; }
  MessageKind operator()(const Withdraw&) const { return MessageKind::kWithdraw; }
  MessageKind operator()(const Unreadable&) const { return MessageKind::kUnreadable; }
  MessageKind operator()(const Standing&) const { return MessageKind::kStanding; }
  MessageKind operator()(const AskStanding&) const { return MessageKind::kAskStanding; }
  MessageKind operator()(const FollowOther&) const { return MessageKind::kFollowOther; }
  MessageKind operator()(const Progress&) const { return MessageKind::kProgress; }
  MessageKind operator()(const JobProgress&) const { return MessageKind::kJobProgress; }
};

// A rank runs up to two machines, its own and the coordinator's. The type of a message alone
// decides which of them gets it.
struct IsForCoordinator {
  template <class T>
  bool operator()(const T&) const {
    return std::is_same_v<T, Join> || std::is_same_v<T, LocalSavePlan> || std::is_same_v<T, SameSavePlan> ||
           std::is_same_v<T, NeedGlobalPlan> || std::is_same_v<T, Written> || std::is_same_v<T, LocalLoadPlan> ||
           std::is_same_v<T, ReadDone> || std::is_same_v<T, PhaseFailed> || std::is_same_v<T, Cancel> ||
           std::is_same_v<T, PhaseStopped> || std::is_same_v<T, Withdraw> || std::is_same_v<T, Standing> ||
           std::is_same_v<T, Progress>;
  }
};

}  // namespace

std::shared_ptr<const Ending> make_ending(const FailureMap& failures, Committed committed, std::string save_id, std::string answer) {
  return std::make_shared<const Ending>(Ending{grouped(failures), committed, std::move(save_id), std::move(answer)});
}

MessageKind kind_of(const Message& message) noexcept { return std::visit(Kind{}, message); }
const char* name_of(const Message& message) noexcept { return to_string(kind_of(message)); }
bool is_for_coordinator(const Message& message) noexcept { return std::visit(IsForCoordinator{}, message); }
bool is_of_progress(const Message& message) noexcept {
  return std::holds_alternative<Progress>(message) || std::holds_alternative<JobProgress>(message);
}

}  // namespace cairn::protocol
