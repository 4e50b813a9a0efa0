#include <cairn/tracing/trace_chain.hpp>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include <cairn/tracing/trace_text.hpp>

namespace cairn {
namespace {

const ObservedEvent* recorded_cause(const Trace& trace, const ObservedEvent& event) {
  if (event.cause == 0) return nullptr;
  // The cause of a received message is the send event, whose id counts in the sender's trace.
  const bool is_of_other_rank = event.kind == EventKind::kHandled && event.peer >= 0;
  return trace.find(is_of_other_rank ? event.peer : event.rank, event.cause);
}

bool is_change_of_state(const ObservedEvent& event) {
  return event.as<RankState>() != nullptr || event.as<CoordinatorState>() != nullptr;
}

// Deadlines and lost connections have no causing event. They ended a wait that began with the last
// state change of the rank.
const ObservedEvent* last_change_before(const Trace& trace, const ObservedEvent& event) {
  const auto& events = trace.events.at(event.rank);
  const bool by_coordinator = event.actor == Actor::kCoordinator;
  // Events of a rank are sorted by id.
  const auto end = std::lower_bound(events.begin(), events.end(), event.id,
                                    [](const ObservedEvent& other, std::uint64_t id) { return other.id < id; });
  const auto found = std::find_if(std::make_reverse_iterator(end), events.rend(), [&](const ObservedEvent& other) {
    return is_change_of_state(other) && (!by_coordinator || other.actor == Actor::kCoordinator);
  });
  return found == events.rend() ? nullptr : &*found;
}

std::string step_text(const PathStep& step) { return std::to_string(step.rank) + step.what; }

// Shorter pauses within an actor are not reported.
constexpr Duration kPauseMin = std::chrono::milliseconds(10);

// Describes the longest pause of the supervisor or coordinator of `to`'s rank between two events,
// if it took at least half of the time; "" otherwise. These actors run no hooks: they, or the whole
// process, were held up.
std::string longest_pause(const Trace& trace, const ObservedEvent& from, const ObservedEvent& to) {
  if (from.rank != to.rank || to.time - from.time < kPauseMin) return "";
  const ObservedEvent *pause_begin = nullptr, *pause_end = nullptr;
  Duration length{0};
  std::map<Actor, const ObservedEvent*> last;  // by actor
  for (const auto& event : trace.events.at(to.rank)) {
    if (event.id > to.id) break;
    if (event.actor != Actor::kSupervisor && event.actor != Actor::kCoordinator) continue;
    const ObservedEvent*& before = last[event.actor];
    // An actor is idle before it handles a message of another rank.
    const bool was_idle = event.kind == EventKind::kHandled && event.peer >= 0;
    // Between two handlers an actor waits for its next message, which is no pause.
    const bool of_one_handler = before != nullptr && is_in_handler_of(*before, event);
    if (of_one_handler && !was_idle && event.id > from.id && event.time - std::max(before->time, from.time) > length) {
      pause_begin = before;
      pause_end = &event;
      length = event.time - std::max(before->time, from.time);
    }
    before = &event;
  }
  // A shorter pause does not explain the time between the two links.
  if (pause_end == nullptr || 2 * length < to.time - from.time) return "";
  if (pause_begin->kind == EventKind::kHandled && pause_begin->peer >= 0)
    return "held up before it acted on " + name_of(*pause_begin) + " from rank " + std::to_string(pause_begin->peer);
  if (pause_end->kind == EventKind::kSent)
    return "held up before it sent " + name_of(*pause_end) +
           (pause_end->peer < 0 ? "" : " to rank " + std::to_string(pause_end->peer));
  return std::string("held up in its ") + to_string(pause_end->actor);
}

// Returns what the time between two links of a chain was spent on, as a statement about the second
// link's rank.
std::string time_spent(const Trace& trace, const ChainLink& before, const ObservedEvent& event) {
  const std::string name = name_of(event);
  if (event.kind == EventKind::kOperation)
    return event.ok && !event.text.empty() ? name + " (" + std::string(event.text) + ")" : name;
  if (before.waited)
    return event.peer >= 0 ? "waited, until " + name + " of rank " + std::to_string(event.peer) : "waited, until " + name;
  if (event.kind == EventKind::kHandled && event.peer >= 0) return "message " + name + " from rank " + std::to_string(event.peer);
  if (const std::string pause = longest_pause(trace, *before.event, event); !pause.empty()) return pause;
  if (event.kind == EventKind::kBegan) return "had no thread free for " + name;
  return event.actor == Actor::kCoordinator ? "coordinated" : "handled messages";
}

}  // namespace

ChainLink cause_of(const Trace& trace, const ObservedEvent& event) {
  const ObservedEvent* const before = recorded_cause(trace, event);
  // A cause that is recorded but not in the traces ends the chain: the last change of state would
  // be a wrong guess.
  if (before != nullptr || event.kind == EventKind::kCall || event.cause != 0) return {before, false};
  const ObservedEvent* const change = last_change_before(trace, event);
  return {change, change != nullptr};
}

std::vector<ChainLink> causal_chain(const Trace& trace, const ObservedEvent& event) {
  std::vector<ChainLink> chain;
  std::set<const ObservedEvent*> seen;
  const ObservedEvent* at = &event;
  bool waited = false;
  // Damaged traces may name causes in a circle.
  while (at != nullptr && seen.insert(at).second) {
    chain.push_back({at, waited});
    const ChainLink before = cause_of(trace, *at);
    waited = before.waited;
    at = before.event;
  }
  std::reverse(chain.begin(), chain.end());
  return chain;
}

// Steps that say the same of the same rank are joined: a reader wants durations, not events.
std::vector<PathStep> critical_path(const Trace& trace, const TraceClocks& clocks, const ObservedEvent& event) {
  const auto chain = causal_chain(trace, event);
  std::vector<PathStep> steps;
  const auto add = [&](PathStep step) {
    // Aligned clocks may differ by their error, so that a step seems to end before it began.
    if (step.duration <= Duration(0)) return;
    if (!steps.empty() && step_text(steps.back()) == step_text(step))
      steps.back().duration += step.duration;
    else
      steps.push_back(std::move(step));
  };
  // The attempt begins with the first call of any rank; the chain begins with the call of one.
  WallTime first = clocks.at(*chain.front().event);
  for (const auto& [rank, events] : trace.events)
    for (const auto& other : events)
      if (other.kind == EventKind::kCall) first = std::min(first, clocks.at(other));
  add({chain.front().event->rank, "had not called yet", first, clocks.at(*chain.front().event) - first});
  for (std::size_t i = 1; i < chain.size(); ++i) {
    const WallTime begin = clocks.at(*chain[i - 1].event);
    const ObservedEvent& after = *chain[i].event;
    const bool is_message = after.kind == EventKind::kHandled && !chain[i - 1].waited;
    add({after.rank, time_spent(trace, chain[i - 1], after), begin, clocks.at(after) - begin, is_message ? after.peer : -1});
  }
  return steps;
}

const ObservedEvent* last_outcome(const Trace& trace, const TraceClocks& clocks, std::optional<int> rank) {
  const ObservedEvent* last = nullptr;
  for (const auto& [of, events] : trace.events) {
    if (rank && *rank != of) continue;
    for (const auto& event : events)
      if (event.kind == EventKind::kOutcome && (last == nullptr || clocks.at(event) > clocks.at(*last))) last = &event;
  }
  return last;
}

}  // namespace cairn
