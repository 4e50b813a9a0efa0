#include <cairn/tests/simulation/rank_watch.hpp>

#include <type_traits>
#include <utility>

#include <cairn/tracing/trace_text.hpp>

namespace cairn::simulation {
namespace {

using State = protocol::CoordinatorMachine::State;

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
      if (const State* state = event.as<State>()) return *state;
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
  if (event.as<Timer>() != nullptr) {
    if (event.is(Timer::kWaiting))
      coverage_.hit("whom the coordinator waits for is told");
    else
      coverage_.hit(event.actor == Actor::kCoordinator ? "coordinator's deadline" : "rank's deadline");
    return;
  }
  coverage_.hit((event.ok ? "became " : "ignored: ") + name_of(event));
  if (event.as<Restarted>() != nullptr && coordinator_dies_) coordinator_dies();
  if (const auto* state = event.as<RankState>()) ranks_[event.checkpointer] = *state;
  if (const auto* state = event.as<SuccessionState>()) successions_[event.checkpointer] = *state;
  if (const State* state = event.as<State>()) {
    coordinators_[event.checkpointer] = *state;
    coordinator_changes_[event.checkpointer] = event.cause;
  }
}

void RankWatch::take_sent(const ObservedEvent& event) {
  if (event.actor == Actor::kCoordinator && event.is(MessageKind::kOutcome)) {
    const auto state = coordinators_.find(event.checkpointer);
    const bool is_idle = state == coordinators_.end() || state->second == State::kIdle;
    if (is_idle && coordinator_changes_[event.checkpointer] != event.cause) coverage_.hit("an outcome was told again");
  }
  if (event.actor == Actor::kSupervisor && event.peer >= 0) {
    coverage_.hit("sent " + name_of(event));
    if (event.is(MessageKind::kOutcome)) outcome_to_others_ = event.cause;
  }
  if (event.name == "Failure" && failed_hooks_.erase(event.cause) != 0) failed_hooks_.insert(event.id);
}

void RankWatch::take_handled(const ObservedEvent& event) {
  if (event.actor != Actor::kSupervisor) return;
  if (event.name == "Failure" && failed_hooks_.erase(event.cause) != 0) {
    Call& call = calls_[event.checkpointer];
    if (!call.has_outcome) call.own_hook_failed = true;
  }
  if (!event.is(MessageKind::kOutcome)) return;
  // The supervisor also handles the outcomes that it passes on to other ranks.
  if (event.peer < 0 && outcome_to_others_ == event.cause) return;
  Call& call = calls_[event.checkpointer];
  call.has_outcome = true;
  if (event.peer < 0) call.told_by_itself = true;
}

void RankWatch::take_end_of_hook(const ObservedEvent& event) {
  if (event.actor != Actor::kPlanner && event.actor != Actor::kStorage) return;
  // A failed reset fails its task after the next hook, `begin`.
  const bool after_reset = event.name == "begin" && std::exchange(reset_failed_, false);
  if (event.name == "reset") reset_failed_ = !event.ok;
  if ((!event.ok || after_reset) && !is_of_coordinator(event.name)) failed_hooks_.insert(event.id);
}

RankState RankWatch::state_of_rank(Checkpointer checkpointer) const {
  const auto found = ranks_.find(checkpointer);
  return found == ranks_.end() ? RankState::kIdle : found->second;
}

std::string RankWatch::busy_state() const {
  std::string busy;
  const auto look = [&](const char* machine, const auto& states) {
    for (const auto& [checkpointer, state] : states)
      if (busy.empty() && state != std::decay_t<decltype(state)>::kIdle) busy = std::string(machine) + ": " + to_string(state);
  };
  look("rank", ranks_);
  look("coordinator", coordinators_);
  look("succession", successions_);
  return busy;
}

void RankWatch::coordinator_dies() {
  coordinators_.clear();
  successions_.clear();
  coordinator_dies_ = !coordinator_dies_;  // once when it is killed, and once when it is replaced
}

void RankWatch::supervisor_dies() {
  ranks_.clear();
  coordinators_.clear();
  successions_.clear();
}

const RankWatch::Call& RankWatch::call(Checkpointer checkpointer) const {
  static const Call none;
  const auto found = calls_.find(checkpointer);
  return found == calls_.end() ? none : found->second;
}

}  // namespace cairn::simulation
