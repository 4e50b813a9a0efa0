#include <cairn/actors/recording/plan_digests.hpp>

#include <memory>
#include <string_view>
#include <type_traits>
#include <utility>

namespace cairn::recording {
namespace {

constexpr std::string_view kLeftOut = "left out of a recording; SHA-256 ";

// Replaces a shared value by a copy without user data, if it has any.
template <class T>
void replace(std::shared_ptr<const T>& shared) {
  if (!shared) return;
  auto copy = std::make_shared<T>(*shared);
  if (leave_out_user_data(*copy)) shared = std::move(copy);
}

void exchange(Digest& digest, const std::map<Digest, Digest>& forms) {
  const auto found = forms.find(digest);
  if (found != forms.end()) digest = found->second;
}

struct LeaveOut {
  void operator()(protocol::LocalSavePlan& message) const { replace(message.plan); }
  void operator()(protocol::GlobalSavePlan& message) const { replace(message.plan); }
  void operator()(protocol::LocalLoadPlan& message) const { replace(message.plan); }
  void operator()(protocol::GlobalLoadPlan& message) const { replace(message.plan); }
  void operator()(protocol::Written& message) const { replace(message.results); }
  void operator()(protocol::Join& message) const { leave_out_user_data(message.text); }
  void operator()(protocol::Outcome& message) const { replace(message.ending); }
  void operator()(protocol::Standing& message) const { replace(message.ending); }
  template <class Other>
  void operator()(Other&) const {}
};

}  // namespace

// Skips data that was already left out.
bool leave_out_user_data(std::string& text) {
  const bool is_left_out = text.size() == kLeftOut.size() + 64 && std::string_view(text).substr(0, kLeftOut.size()) == kLeftOut;
  if (text.empty() || is_left_out) return false;
  text = std::string(kLeftOut) + to_hex(sha256(text));
  return true;
}

bool leave_out_user_data(SavePlan& plan) {
  const bool planners = leave_out_user_data(plan.planner_data);
  return leave_out_user_data(plan.storage_data) || planners;
}

bool leave_out_user_data(LoadPlan& plan) {
  const bool planners = leave_out_user_data(plan.planner_data);
  return leave_out_user_data(plan.storage_data) || planners;
}

bool leave_out_user_data(protocol::Ending& ending) { return leave_out_user_data(ending.answer); }

bool leave_out_user_data(WriteResults& results) {
  bool some = false;
  for (auto& item : results.items) some = leave_out_user_data(item.user_data) || some;
  return some;
}

protocol::Message without_user_data(const protocol::Message& message) {
  protocol::Message copy = message;
  std::visit(LeaveOut{}, copy);
  return copy;
}

void PlanDigests::add(const Digest& recorded, const Digest& replayed) {
  to_replayed_.insert_or_assign(recorded, replayed);
  to_recorded_.insert_or_assign(replayed, recorded);
}

void PlanDigests::to_replayed(protocol::Message& message) const {
  std::visit(
      [&](auto& it) {
        using T = std::decay_t<decltype(it)>;
        if constexpr (std::is_same_v<T, protocol::NeedLocalPlan> || std::is_same_v<T, protocol::NeedGlobalPlan>)
          exchange(it.digest, to_replayed_);
      },
      message);
}

void PlanDigests::to_recorded(protocol::Message& message) const {
  std::visit(
      [&](auto& it) {
        using T = std::decay_t<decltype(it)>;
        if constexpr (std::is_same_v<T, protocol::LocalSavePlan> || std::is_same_v<T, protocol::SameSavePlan> ||
                      std::is_same_v<T, protocol::GlobalSavePlan> || std::is_same_v<T, protocol::UseCachedPlan>)
          exchange(it.digest, to_recorded_);
      },
      message);
}

}  // namespace cairn::recording
