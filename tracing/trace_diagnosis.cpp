#include <cairn/tracing/trace_diagnosis.hpp>

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <utility>

#include <cairn/base/failure.hpp>
#include <cairn/base/rank_text.hpp>
#include <cairn/tracing/trace_failure_maps.hpp>
#include <cairn/tracing/trace_hooks.hpp>
#include <cairn/tracing/trace_names.hpp>
#include <cairn/tracing/trace_notices.hpp>
#include <cairn/tracing/trace_phases.hpp>

namespace cairn {
namespace {

using namespace trace_names;

// Returns the hook that an event belongs to.
TracedHook hook_of(const TraceClocks& clocks, const ObservedEvent& event) {
  TracedHook hook;
  hook.name = event.name;
  hook.actor = event.actor;
  hook.begin = clocks.begin_of(event);
  if (event.kind == EventKind::kOperation) hook.duration = event.duration;
  return hook;
}

// Returns the hook that ran in a rank when it gave its last sign, the latest one of several.
std::optional<TracedHook> running_hook(const Trace& trace, const TraceClocks& clocks, const ObservedEvent& sign) {
  const auto hooks = hook_events(trace.events.at(sign.rank));
  for (auto hook = hooks.rbegin(); hook != hooks.rend(); ++hook) {
    const bool has_ended = (*hook)->kind == EventKind::kOperation;
    const bool began_before = (has_ended ? (*hook)->cause : (*hook)->id) <= sign.id;
    if (!began_before || (has_ended && (*hook)->id <= sign.id)) continue;
    TracedHook running = hook_of(clocks, **hook);
    running.duration.reset();
    return running;
  }
  return std::nullopt;
}

bool is_gone(const TracedFailure& failure) {
  return failure.kind == to_string(FailureKind::kLost) || failure.kind == to_string(FailureKind::kSilent);
}

void add_what_the_trace_says(const Trace& trace, const TraceClocks& clocks, std::uint64_t position, TracedFailure& failure) {
  const ObservedEvent* const sign = last_sign_of(trace, clocks, failure);
  if (sign != nullptr) failure.last_sign = clocks.at(*sign);
  const ObservedEvent* const origin = position == 0 ? nullptr : trace.find(failure.rank, position);
  if (origin != nullptr && origin->kind == EventKind::kOperation) {
    failure.hook = hook_of(clocks, *origin);
    if (failure.text.empty()) failure.text = origin->text;
  } else if (sign != nullptr && (is_gone(failure) || failure.kind == to_string(FailureKind::kBusy))) {
    failure.hook = running_hook(trace, clocks, *sign);
  }
  if (is_gone(failure)) failure.own_phase = own_phase_of(trace, clocks, failure.rank);
}

std::vector<TracedFailure> told_failures(const Trace& trace, const TraceClocks& clocks) {
  std::vector<TracedFailure> failures;
  std::vector<int> others;
  const auto map = common_map(trace, others);
  if (!map) return failures;
  for (const auto& [whose, event] : *map) {
    TracedFailure failure;
    failure.rank = whose;
    failure.kind = event->name;
    failure.code = event->detail;
    failure.phase = event->phase ? to_string(*event->phase) : "";
    failure.text = event->text;
    add_what_the_trace_says(trace, clocks, event->number, failure);
    failures.push_back(std::move(failure));
  }
  return failures;
}

// If no rank received a failure map, infers failures from hooks that threw and from traces that end
// first.
std::vector<TracedFailure> concluded_failures(const Trace& trace, const TraceClocks& clocks) {
  std::vector<TracedFailure> failures;
  for (const auto& [rank, events] : trace.events) {
    const auto thrown = std::find_if(events.begin(), events.end(),
                                     [](const auto& event) { return event.kind == EventKind::kOperation && !event.ok; });
    TracedFailure failure;
    failure.rank = rank;
    failure.told = false;
    if (thrown != events.end()) {
      failure.kind = to_string(FailureKind::kRaised);
      failure.phase = thrown->phase ? to_string(*thrown->phase) : "";
      failure.text = thrown->text;
      add_what_the_trace_says(trace, clocks, thrown->id, failure);
    } else if (const auto hook = events.empty() ? std::nullopt : running_hook(trace, clocks, events.back())) {
      failure.kind = "unfinished";
      failure.hook = hook;
      failure.text = "its trace ends within " + hook->name;
      failure.last_sign = clocks.at(events.back());
    } else {
      continue;
    }
    failures.push_back(std::move(failure));
  }
  return failures;
}

// The surviving ranks waited for a lost or silent rank from its last sign of life until they gave
// it up.
std::optional<TracedWait> wait_for_the_gone(const Trace& trace, const TraceClocks& clocks, const Diagnosis& diagnosis) {
  std::optional<TracedWait> longest;
  for (const auto& failure : diagnosis.failures) {
    if (!is_gone(failure)) continue;
    std::optional<WallTime> given_up;
    WallTime last_heard = diagnosis.begin;
    int waiter = -1;
    for (const auto& [rank, events] : trace.events) {
      if (rank == failure.rank) continue;
      for (const auto& event : events) {
        const WallTime time = clocks.at(event);
        const bool is_about_it = event.kind == EventKind::kHandled && event.peer == failure.rank;
        if (is_about_it && event.name == kLinkDown) {
          // If several ranks noticed, the coordinator's time counts.
          if (!given_up || rank == diagnosis.coordinator) {
            given_up = time;
            waiter = rank;
          }
          break;
        }
        if (is_about_it) last_heard = std::max(last_heard, time);
      }
    }
    if (!given_up) continue;
    TracedWait wait;
    wait.waiter = waiter;
    wait.awaited = {failure.rank};
    wait.phase = failure.phase;
    wait.since = std::min(*given_up, std::max(last_heard, failure.last_sign.value_or(last_heard)));
    // The rank may have come back and continued its trace after it was given up.
    if (failure.last_sign && *failure.last_sign > *given_up) wait.since = last_heard;
    wait.duration = *given_up - wait.since;
    wait.was_answered = false;
    if (!longest || wait.duration > longest->duration) longest = std::move(wait);
  }
  return longest;
}

TracedEnd end_of(const Trace& trace, const Diagnosis& diagnosis) {
  bool has_outcome = false;
  for (const auto& [rank, call] : trace.attempt.calls) has_outcome = has_outcome || call.has_ended;
  if (!has_outcome) return TracedEnd::kUnfinished;
  if (diagnosis.failures.empty()) return TracedEnd::kSucceeded;
  return trace.attempt.was_cancelled ? TracedEnd::kCancelled : TracedEnd::kFailed;
}

}  // namespace

const char* to_string(TracedEnd end) noexcept {
  switch (end) {
    case TracedEnd::kSucceeded:
      return "succeeded";
    case TracedEnd::kFailed:
      return "failed";
    case TracedEnd::kCancelled:
      return "cancelled";
    case TracedEnd::kUnfinished:
      return "unfinished";
  }
  return "unknown";
}

const ObservedEvent* last_sign_of(const Trace& trace, const TraceClocks& clocks, const TracedFailure& failure) {
  const auto own = trace.events.find(failure.rank);
  if (own == trace.events.end() || own->second.empty()) return nullptr;
  const ObservedEvent* sign = &own->second.back();
  if (!is_gone(failure)) return sign;
  std::optional<WallTime> missed;
  for (const auto& [rank, events] : trace.events)
    for (const auto& event : events)
      if (rank != failure.rank && event.kind == EventKind::kHandled && event.name == kLinkDown && event.peer == failure.rank)
        missed = std::min(missed.value_or(WallTime::max()), clocks.at(event));
  if (!missed) return sign;
  const auto after =
      std::find_if(own->second.begin(), own->second.end(), [&](const auto& event) { return clocks.at(event) >= *missed; });
  return after == own->second.begin() ? sign : &*std::prev(after);
}

Diagnosis diagnose(const Trace& trace, const std::vector<TracedMessage>& messages, const TraceClocks& clocks) {
  Diagnosis diagnosis;
  std::optional<WallTime> begin;
  std::optional<WallTime> end;
  for (const auto& [rank, events] : trace.events)
    for (const auto& event : events) {
      const WallTime time = clocks.at(event);
      if (event.kind == EventKind::kCall) begin = std::min(begin.value_or(time), time);
      const bool counts = event.kind == EventKind::kOutcome || !trace.attempt.has_ended();
      if (counts) end = std::max(end.value_or(time), time);
      if (event.kind == EventKind::kOutcome && diagnosis.committed != "yes") diagnosis.committed = event.detail;
      if (event.kind == EventKind::kBegan) diagnosis.bytes += event.bytes;
    }
  diagnosis.begin = begin.value_or(trace.attempt.begin());
  diagnosis.duration = end.value_or(diagnosis.begin) - diagnosis.begin;
  diagnosis.coordinator = coordinator_of(trace);
  diagnosis.failures = told_failures(trace, clocks);
  diagnosis.end = end_of(trace, diagnosis);
  if (diagnosis.end == TracedEnd::kUnfinished) diagnosis.failures = concluded_failures(trace, clocks);

  diagnosis.phases = phases_of(trace, clocks, diagnosis.coordinator);
  for (const auto& phase : diagnosis.phases)
    if ((phase.name == "write" || phase.name == "read") && phase.duration > Duration(0))
      diagnosis.bytes_per_second = static_cast<double>(diagnosis.bytes) / std::chrono::duration<double>(phase.duration).count();
  diagnosis.wait = wait_for_the_gone(trace, clocks, diagnosis);
  if (!diagnosis.wait) diagnosis.wait = longest_wait(trace, clocks, diagnosis.coordinator);

  diagnosis.notices = notices_of(trace, messages, clocks, diagnosis);
  return diagnosis;
}

}  // namespace cairn
