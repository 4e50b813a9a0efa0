#include <cairn/tracing/trace_explanation.hpp>

#include <utility>

namespace cairn {
namespace {

// Returns the event behind a failure in the map.
const ObservedEvent* origin_of(const Trace& trace, const TracedFailure& failure) {
  for (const auto& [rank, events] : trace.events)
    for (const auto& event : events) {
      if (event.kind != EventKind::kFailure || event.number == 0) continue;
      // -1 stands for the rank itself.
      const int whose = event.peer < 0 ? rank : event.peer;
      if (whose != failure.rank) continue;
      const auto* const origin = trace.find(whose, event.number);
      if (origin != nullptr) return origin;
    }
  const ObservedEvent* const sign = failure.last_event;
  // A hook with a duration has ended, so the rank was not in it.
  if (sign == nullptr || !failure.hook || failure.hook->duration) return sign;
  const ObservedEvent* origin = sign;
  for (const auto& event : trace.events.at(failure.rank))
    if (event.kind == EventKind::kBegan && event.name == failure.hook->name && event.id <= sign->id) origin = &event;
  return origin;
}

Explanation explain_failure(const Trace& trace, const TracedFailure& failure) {
  Explanation explanation;
  explanation.rank = failure.rank;
  explanation.failure = &failure;
  const std::string who = trace.job.describe(failure.rank);
  std::string where = failure.phase ? std::string(" in ") + to_string(*failure.phase) : "";
  if (failure.own_phase && failure.own_phase != failure.phase)
    where += std::string(" (while it was in ") + to_string(*failure.own_phase) + ")";
  const std::string kind = kind_text(failure);
  const auto* const origin = origin_of(trace, failure);
  if (origin == nullptr) {
    explanation.title = who + ", " + kind + where + ": no trace of it is here";
    // The title begins a line.
    explanation.title[0] = 'R';
    return explanation;
  }
  if (origin->kind == EventKind::kOperation && !origin->ok)
    explanation.title = "What led to the failure of " + who + where;
  else if (origin->kind == EventKind::kBegan)
    explanation.title = "What " + who + ", " + kind + where + ", was in when it was last heard of, and what led to it";
  else
    explanation.title = "The last sign of " + who + ", " + kind + where + ", and what led to it";
  explanation.chain = causal_chain(trace, *origin);
  return explanation;
}

}  // namespace

std::vector<Explanation> explain(const Trace& trace, const TraceClocks& clocks, const Diagnosis& diagnosis,
                                 std::optional<int> rank) {
  std::vector<Explanation> explanations;
  for (const auto& failure : diagnosis.failures)
    if (!rank || failure.rank == *rank) explanations.push_back(explain_failure(trace, failure));
  if (const auto* const outcome = last_outcome(trace, clocks, rank)) {
    Explanation end;
    end.title = "What led to the end of the call on rank " + std::to_string(outcome->rank);
    end.rank = outcome->rank;
    end.chain = causal_chain(trace, *outcome);
    explanations.push_back(std::move(end));
  }
  return explanations;
}

}  // namespace cairn
