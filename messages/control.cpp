#include <cairn/messages/control.hpp>

#include <utility>

namespace cairn::protocol {
namespace {

struct Name {
  const char* operator()(const Join&) const { return "Join"; }
  const char* operator()(const Begin&) const { return "Begin"; }
  const char* operator()(const LocalSavePlan&) const { return "LocalSavePlan"; }
  const char* operator()(const SameSavePlan&) const { return "SameSavePlan"; }
  const char* operator()(const NeedLocalPlan&) const { return "NeedLocalPlan"; }
  const char* operator()(const GlobalSavePlan&) const { return "GlobalSavePlan"; }
  const char* operator()(const UseCachedPlan&) const { return "UseCachedPlan"; }
  const char* operator()(const NeedGlobalPlan&) const { return "NeedGlobalPlan"; }
  const char* operator()(const Written&) const { return "Written"; }
  const char* operator()(const LocalLoadPlan&) const { return "LocalLoadPlan"; }
  const char* operator()(const GlobalLoadPlan&) const { return "GlobalLoadPlan"; }
  const char* operator()(const ReadDone&) const { return "ReadDone"; }
  const char* operator()(const PhaseFailed&) const { return "PhaseFailed"; }
  const char* operator()(const Outcome&) const { return "Outcome"; }
  const char* operator()(const Cancel&) const { return "Cancel"; }
  const char* operator()(const CoordinatorDown&) const { return "CoordinatorDown"; }
  const char* operator()(const StopPhase&) const { return "StopPhase"; }
  const char* operator()(const PhaseStopped&) const { return "PhaseStopped"; }
  const char* operator()(const Withdraw&) const { return "Withdraw"; }
  const char* operator()(const Unreadable&) const { return "Unreadable"; }
  const char* operator()(const Standing&) const { return "Standing"; }
  const char* operator()(const AskStanding&) const { return "AskStanding"; }
  const char* operator()(const FollowOther&) const { return "FollowOther"; }
  const char* operator()(const Progress&) const { return "Progress"; }
  const char* operator()(const JobProgress&) const { return "JobProgress"; }
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

const char* name_of(const Message& message) noexcept { return std::visit(Name{}, message); }
bool is_for_coordinator(const Message& message) noexcept { return std::visit(IsForCoordinator{}, message); }
bool is_of_progress(const Message& message) noexcept {
  return std::holds_alternative<Progress>(message) || std::holds_alternative<JobProgress>(message);
}

}  // namespace cairn::protocol
