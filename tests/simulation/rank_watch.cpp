#include <cairn/tests/simulation/rank_watch.hpp>

#include <utility>

namespace cairn::simulation {
namespace {

using State = protocol::CoordinatorMachine::State;

constexpr std::string_view kSupervisor = "supervisor";
constexpr std::string_view kCoordinator = "coordinator";
constexpr std::string_view kCoordinatorIdle = "coordinator: idle";

bool begins_with(std::string_view text, std::string_view start) { return text.substr(0, start.size()) == start; }

std::optional<State> coordinator_state(std::string_view name) {
  for (const State state : {State::kIdle, State::kJoining, State::kLocalPlans, State::kGlobalPlan, State::kMoving,
                            State::kFinishing, State::kSettling, State::kDeciding})
    if (name == to_string(state)) return state;
  return std::nullopt;
}

// Hooks that the coordinator's machine asks for.
bool is_of_coordinator(std::string_view hook) {
  return hook == "create_global_plan" || hook == "prepare_global_plan" || hook == "finish" || hook == "committed" ||
         hook == "decide";
}

}  // namespace

std::optional<State> RankWatch::take(const ObservedEvent& event) {
  switch (event.kind) {
    case EventKind::kState:
      take_state(event);
      if (event.ok && event.actor == kCoordinator) return coordinator_state(event.name);
      break;
    case EventKind::kSent:
      take_sent(event);
      break;
    case EventKind::kHandled:
      take_handled(event);
      break;
    case EventKind::kOperation:
      take_end_of_hook(event);
      break;
    case EventKind::kOutcome:
      calls_[event.checkpointer].attempt = event.attempt;
      break;
    default:
      break;
  }
  return std::nullopt;
}

void RankWatch::take_state(const ObservedEvent& event) {
  const std::string name(event.name);
  if (begins_with(event.name, "timer: ")) {
    if (event.name == "timer: the warning of missing ranks")
      coverage_.hit("whom the coordinator waits for is told");
    else
      coverage_.hit(event.actor == kCoordinator ? "coordinator's deadline" : "rank's deadline");
    return;
  }
  coverage_.hit((event.ok ? "became " : "ignored: ") + name);
  if (name == "an actor of this rank is restarted" && coordinator_dies_) coordinator_dies();
  if (!event.ok) return;
  if (begins_with(event.name, "rank: ")) ranks_[event.checkpointer] = event.name;
  if (begins_with(event.name, "succession: ")) successions_[event.checkpointer] = event.name;
  if (!coordinator_state(event.name)) return;
  coordinators_[event.checkpointer] = event.name;
  coordinator_changes_[event.checkpointer] = event.cause;
}

void RankWatch::take_sent(const ObservedEvent& event) {
  if (event.actor == kCoordinator && event.name == "Outcome") {
    const auto state = coordinators_.find(event.checkpointer);
    const bool is_idle = state == coordinators_.end() || state->second == kCoordinatorIdle;
    if (is_idle && coordinator_changes_[event.checkpointer] != event.cause) coverage_.hit("an outcome was told again");
  }
  if (event.actor == kSupervisor && event.peer >= 0) {
    coverage_.hit("sent " + std::string(event.name));
    if (event.name == "Outcome") outcome_to_others_ = event.cause;
  }
  if (event.name == "Failure" && failed_hooks_.erase(event.cause) != 0) failed_hooks_.insert(event.id);
}

void RankWatch::take_handled(const ObservedEvent& event) {
  if (event.actor != kSupervisor) return;
  if (event.name == "Failure" && failed_hooks_.erase(event.cause) != 0) {
    Call& call = calls_[event.checkpointer];
    if (!call.has_outcome) call.own_hook_failed = true;
  }
  if (event.name != "Outcome") return;
  // The supervisor also handles the outcomes that it passes on to other ranks.
  if (event.peer < 0 && outcome_to_others_ == event.cause) return;
  Call& call = calls_[event.checkpointer];
  call.has_outcome = true;
  if (event.peer < 0) call.told_by_itself = true;
}

void RankWatch::take_end_of_hook(const ObservedEvent& event) {
  if (event.actor != "planner" && event.actor != "storage") return;
  // A failed reset fails its task after the next hook, `begin`.
  const bool after_reset = event.name == "begin" && std::exchange(reset_failed_, false);
  if (event.name == "reset") reset_failed_ = !event.ok;
  if ((!event.ok || after_reset) && !is_of_coordinator(event.name)) failed_hooks_.insert(event.id);
}

std::string RankWatch::state_of_rank(Checkpointer checkpointer) const {
  const auto found = ranks_.find(checkpointer);
  return found == ranks_.end() ? "rank: idle" : std::string(found->second);
}

std::string RankWatch::busy_state() const {
  for (const auto* states : {&ranks_, &coordinators_, &successions_})
    for (const auto& [checkpointer, state] : *states)
      if (state.substr(state.size() - 4) != "idle") return std::string(state);
  return {};
}

void RankWatch::coordinator_dies() {
  coordinators_.clear();
  successions_.clear();
  coordinator_dies_ = !coordinator_dies_;  // once when it is killed, and once when it is replaced
}

const RankWatch::Call& RankWatch::call(Checkpointer checkpointer) const {
  static const Call none;
  const auto found = calls_.find(checkpointer);
  return found == calls_.end() ? none : found->second;
}

}  // namespace cairn::simulation
