#include <cairn/tracing/trace_phases.hpp>

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include <cairn/base/call_phase.hpp>
#include <cairn/tracing/trace_text.hpp>

namespace cairn {
namespace {

struct PhaseNames {
  CoordinatorState of_coordinator;
  std::optional<RankState> of_ranks;  // nothing: only the coordinator works
  std::vector<MessageKind> answers;   // end a rank's part, in addition to kEnds
};
constexpr std::array<MessageKind, 3> kEnds = {MessageKind::kPhaseFailed, MessageKind::kPhaseStopped, MessageKind::kCancel};

// The states and messages of actors/protocol, in the order of time. kWrite stands for kRead too.
const std::array<std::pair<Phase, PhaseNames>, 5> kPhases = {{
    {Phase::kJoin, {CoordinatorState::kJoining, RankState::kJoining, {MessageKind::kJoin}}},
    {Phase::kLocalPlan,
     {CoordinatorState::kLocalPlans,
      RankState::kPreparing,
      {MessageKind::kLocalSavePlan, MessageKind::kSameSavePlan, MessageKind::kLocalLoadPlan}}},
    {Phase::kGlobalPlan, {CoordinatorState::kGlobalPlan, std::nullopt, {}}},
    {Phase::kWrite, {CoordinatorState::kMoving, RankState::kMoving, {MessageKind::kWritten, MessageKind::kReadDone}}},
    {Phase::kFinish, {CoordinatorState::kFinishing, std::nullopt, {}}},
}};

Phase phase_in(const Trace& trace, Phase phase) {
  return phase == Phase::kWrite && trace.attempt.operation == Operation::kLoad ? Phase::kRead : phase;
}

bool is_answer_in(const PhaseNames& phase, MessageKind kind) {
  const auto is = [&](MessageKind other) { return kind == other; };
  return std::any_of(phase.answers.begin(), phase.answers.end(), is) || std::any_of(kEnds.begin(), kEnds.end(), is);
}

bool is_answer_in(const PhaseNames& phase, const ObservedEvent& event) {
  const auto* const kind = event.as<MessageKind>();
  return kind != nullptr && is_answer_in(phase, *kind);
}

// Stands in for the end of a phase that has none in the traces.
WallTime end_of_trace(const Trace& trace, const TraceClocks& clocks) {
  WallTime last = WallTime::min();
  for (const auto& [rank, events] : trace.events)
    if (!events.empty()) last = std::max(last, clocks.at(events.back()));
  return last;
}

template <class State>
const TracedState<State>* find(const std::vector<TracedState<State>>& states, State wanted) {
  const auto found = std::find_if(states.begin(), states.end(), [&](const auto& it) { return it.state == wanted; });
  return found == states.end() ? nullptr : &*found;
}

using StatesByRank = std::map<int, std::vector<TracedState<RankState>>>;

StatesByRank rank_states(const Trace& trace, const TraceClocks& clocks) {
  StatesByRank states;
  for (const auto& [rank, events] : trace.events) states[rank] = states_of<RankState>(trace, clocks, rank);
  return states;
}

// A rank's part in a phase. Delays between a message and the change of state belong to it: it
// begins when the message that starts it arrives, and ends when the answer is sent.
struct Part {
  WallTime begin;
  std::optional<WallTime> end;  // nothing: the rank did not finish it
};

// Returns when the rank sent its own answer after `entry`. The coordinator's rank also passes on
// the answers of other ranks.
std::optional<WallTime> answered_at(const Trace& trace, const TraceClocks& clocks, const PhaseNames& names,
                                    const ObservedEvent& entry) {
  for (const auto& event : trace.events.at(entry.rank)) {
    if (event.id <= entry.id || event.kind != EventKind::kSent || event.actor != Actor::kSupervisor || !is_answer_in(names, event))
      continue;
    const ObservedEvent* const cause = trace.find(event.rank, event.cause);
    // An answer that was caused by the same answer is passed on for another rank.
    if (cause == nullptr || cause->kind != EventKind::kHandled || cause->what != event.what) return clocks.at(event);
  }
  return std::nullopt;
}

Part part_of(const Trace& trace, const TraceClocks& clocks, const PhaseNames& names, const TracedState<RankState>& state,
             WallTime earliest) {
  const ObservedEvent& entry = *state.entry;
  Part part{state.begin, state.end};
  if (const auto* const start = trace.find(entry.rank, entry.cause))
    part.begin = std::min(part.begin, std::max(earliest, clocks.begin_of(*start)));
  if (!state.end) return part;
  const auto answered = answered_at(trace, clocks, names, entry);
  const auto call = trace.attempt.calls.find(entry.rank);
  if (answered)
    part.end = std::max(*state.end, *answered);
  else if (call == trace.attempt.calls.end() || !call->second.has_ended)
    part.end.reset();  // it had the answer, and did not send it
  return part;
}

// `end`: when the phase ended, or the trace.
void add_parts(TracedPhase& phase, const PhaseNames& names, const Trace& trace, const TraceClocks& clocks,
               const StatesByRank& states, WallTime end) {
  std::vector<std::tuple<bool, Duration, int>> parts;  // whether it is unfinished, its duration, its rank
  for (const auto& [rank, of_rank] : states) {
    const auto* const state = find(of_rank, *names.of_ranks);
    if (state == nullptr) continue;
    if (phase.phase == Phase::kJoin) {
      parts.emplace_back(false, std::max(Duration(0), Duration(state->begin - phase.begin)), rank);
      continue;
    }
    const Part part = part_of(trace, clocks, names, *state, phase.begin);
    parts.emplace_back(!part.end, std::max(Duration(0), Duration(part.end.value_or(end) - part.begin)), rank);
    if (!part.end) phase.unfinished.push_back(rank);
  }
  if (parts.empty()) return;
  std::sort(parts.begin(), parts.end());
  // The lower median: with two ranks, the faster one. Otherwise the slower of two would be its own
  // median.
  phase.median = std::get<Duration>(parts[(parts.size() - 1) / 2]);
  std::tie(std::ignore, phase.slowest, phase.slowest_rank) = parts.back();
}

// Returns the failure map that each rank received.
std::map<int, EventsByRank> told_maps(const Trace& trace) {
  std::map<int, EventsByRank> maps;
  for (const auto& [rank, events] : trace.events)
    for (const auto& event : events)
      if (event.kind == EventKind::kFailure) maps[rank].emplace(event.peer < 0 ? rank : event.peer, &event);
  return maps;
}

std::string summary_of(const EventsByRank& map) {
  std::string text;
  for (const auto& [rank, event] : map) text += std::to_string(rank) + " " + name_of(*event) + "\n";
  return text;
}

}  // namespace

bool ends_part(MessageKind kind) {
  return std::any_of(kPhases.begin(), kPhases.end(), [&](const auto& entry) { return is_answer_in(entry.second, kind); });
}

int coordinator_of(const Trace& trace) {
  for (const auto& [rank, events] : trace.events)
    for (const auto& event : events)
      if (event.as<CoordinatorState>() != nullptr && (event.attempt == trace.attempt.counter || trace.attempt.counter == 0))
        return rank;
  // The coordinator's own trace is missing. Every rank sends its reports to the coordinator; the
  // registrar, rank 0, only receives joins.
  for (const auto& [rank, events] : trace.events)
    for (const auto& event : events)
      if (event.kind == EventKind::kSent && event.peer >= 0 && event.actor == Actor::kSupervisor &&
          is_answer_in(kPhases[1].second, event))
        return event.peer;
  return -1;
}

std::optional<Phase> own_phase_of(const Trace& trace, const TraceClocks& clocks, int rank) {
  const auto last_phase = [&](const auto& states) {
    return states.empty() ? std::nullopt : phase_of(states.back().state, trace.attempt.operation.value_or(Operation::kSave));
  };
  return coordinator_of(trace) == rank ? last_phase(states_of<CoordinatorState>(trace, clocks, rank))
                                       : last_phase(states_of<RankState>(trace, clocks, rank));
}

std::vector<TracedPhase> phases_of(const Trace& trace, const TraceClocks& clocks, int coordinator) {
  const auto states = rank_states(trace, clocks);
  const auto of_coordinator = states_of<CoordinatorState>(trace, clocks, coordinator);
  const WallTime end = end_of_trace(trace, clocks);
  std::vector<TracedPhase> phases;
  for (const auto& [of, names] : kPhases) {
    TracedPhase phase;
    phase.phase = phase_in(trace, of);
    std::optional<WallTime> begin;
    std::optional<WallTime> until;
    if (const auto* state = find(of_coordinator, names.of_coordinator)) {
      begin = state->begin;
      until = state->end;
    }
    // Ranks begin before the coordinator learns of it. Without the coordinator's trace, only their
    // states are known.
    for (const auto& [rank, of_rank] : states) {
      if (!names.of_ranks) break;
      const auto* state = find(of_rank, *names.of_ranks);
      if (state == nullptr) continue;
      if (!begin || (of == Phase::kJoin && state->begin < *begin)) begin = state->begin;
      if (of_coordinator.empty() && state->end) until = std::max(until.value_or(*state->end), *state->end);
    }
    if (!begin) continue;
    phase.begin = *begin;
    phase.has_ended = until.has_value();
    phase.duration = until.value_or(end) - *begin;
    if (names.of_ranks) add_parts(phase, names, trace, clocks, states, until.value_or(end));
    phases.push_back(std::move(phase));
  }
  return phases;
}

std::optional<TracedWait> longest_wait(const Trace& trace, const TraceClocks& clocks, int coordinator) {
  const auto found = trace.events.find(coordinator);
  if (found == trace.events.end()) return std::nullopt;
  const auto of_coordinator = states_of<CoordinatorState>(trace, clocks, coordinator);
  const auto own = states_of<RankState>(trace, clocks, coordinator);
  const WallTime end = end_of_trace(trace, clocks);
  std::optional<TracedWait> longest;
  for (const auto& [of, names] : kPhases) {
    const auto* const phase = find(of_coordinator, names.of_coordinator);
    if (phase == nullptr) continue;
    const WallTime until = phase->end.value_or(end);
    if (!names.of_ranks) {  // only the coordinator works
      TracedWait wait{coordinator, {coordinator}, of, phase->begin, until - phase->begin, phase->end.has_value()};
      if (!longest || wait.duration > longest->duration) longest = std::move(wait);
      continue;
    }

    // The first answer of each rank counts; answers may be repeated.
    std::map<int, WallTime> answered;
    for (const auto& event : found->second) {
      if (event.kind != EventKind::kHandled || event.peer < 0 || event.actor != Actor::kSupervisor || !is_answer_in(names, event))
        continue;
      const WallTime time = clocks.at(event);
      // Joins may arrive before the coordinator's own rank has called.
      if (time > until || (time < phase->begin && of != Phase::kJoin)) continue;
      answered.emplace(event.peer, std::max(time, phase->begin));
    }
    if (const auto* const part = find(own, *names.of_ranks)) {
      if (of == Phase::kJoin)
        answered[coordinator] = std::max(part->begin, phase->begin);
      else if (const auto ended = part_of(trace, clocks, names, *part, phase->begin).end; ended && *ended <= until)
        answered[coordinator] = *ended;
    }

    TracedWait wait;
    wait.waiter = coordinator;
    wait.phase = phase_in(trace, of);
    for (int rank = 0; rank < trace.job.world_size; ++rank)
      if (answered.count(rank) == 0) wait.awaited.push_back(rank);
    std::vector<std::pair<WallTime, int>> order;
    order.reserve(answered.size());
    for (const auto& [rank, time] : answered) order.emplace_back(time, rank);
    std::sort(order.begin(), order.end());
    // If all answered, the wait is for the last one: from the answer before it to its own.
    wait.was_answered = wait.awaited.empty();
    WallTime answer = until;
    if (wait.was_answered && !order.empty()) {
      wait.awaited.push_back(order.back().second);
      answer = order.back().first;
      order.pop_back();
    }
    wait.since = order.empty() ? phase->begin : std::max(phase->begin, order.back().first);
    wait.duration = answer - wait.since;
    if (!longest || wait.duration > longest->duration) longest = std::move(wait);
  }
  return longest;
}

std::optional<EventsByRank> common_map(const Trace& trace, std::vector<int>& others) {
  const auto maps = told_maps(trace);
  std::map<std::string, std::vector<int>> ranks;
  // Maps that name the same ranks and kinds count as the same, whatever their texts.
  for (const auto& [rank, map] : maps) ranks[summary_of(map)].push_back(rank);
  const auto most =
      std::max_element(ranks.begin(), ranks.end(), [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  if (most == ranks.end()) return std::nullopt;
  for (const auto& [rank, map] : maps)
    if (summary_of(map) != most->first) others.push_back(rank);
  return maps.at(most->second.front());
}

}  // namespace cairn
