#include <cairn/tracing/trace_diagnosis.hpp>

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <utility>

#include <cairn/base/failure.hpp>
#include <cairn/base/rank_text.hpp>
#include <cairn/tracing/trace_names.hpp>
#include <cairn/tracing/trace_phases.hpp>

namespace cairn {
namespace {

using namespace trace_names;

// Below these, what is uneven is nobody's trouble.
constexpr Duration kStragglerMin = std::chrono::milliseconds(100);
constexpr std::uint64_t kUnevenBytesMin = 64u << 20;
constexpr Duration kQueuedMin = std::chrono::milliseconds(500);
constexpr Duration kJumpMin = std::chrono::milliseconds(100);
constexpr int kStragglerRatio = 2;

std::string in_text(Duration duration) {
  const double seconds = std::chrono::duration<double>(duration).count();
  char text[40];
  if (seconds >= 1)
    std::snprintf(text, sizeof text, "%.2f s", seconds);
  else
    std::snprintf(text, sizeof text, "%.1f ms", seconds * 1000);
  return text;
}

const ObservedEvent* last_event(const Trace& trace, int rank) {
  const auto found = trace.events.find(rank);
  return found == trace.events.end() || found->second.empty() ? nullptr : &found->second.back();
}

// The hook that an event is of.
TracedHook hook_of(const TraceClocks& clocks, const ObservedEvent& event) {
  TracedHook hook;
  hook.name = event.name;
  hook.actor = event.actor;
  hook.begin = clocks.begin_of(event);
  if (event.kind == EventKind::kOperation) hook.duration = event.duration;
  return hook;
}

// The last hook of a rank that has begun and not ended.
std::optional<TracedHook> running_hook(const Trace& trace, const TraceClocks& clocks, int rank) {
  const auto found = trace.events.find(rank);
  if (found == trace.events.end()) return std::nullopt;
  std::vector<const ObservedEvent*> open;
  for (const auto& event : found->second) {
    if (event.kind == EventKind::kBegan) open.push_back(&event);
    if (event.kind != EventKind::kOperation) continue;
    const auto began = std::find_if(open.begin(), open.end(), [&](const auto* other) { return other->id == event.cause; });
    if (began != open.end()) open.erase(began);
  }
  if (open.empty()) return std::nullopt;
  return hook_of(clocks, *open.back());
}

bool is_gone(const TracedFailure& failure) {
  return failure.kind == to_string(FailureKind::kLost) || failure.kind == to_string(FailureKind::kSilent);
}

void add_what_the_trace_says(const Trace& trace, const TraceClocks& clocks, std::uint64_t position, TracedFailure& failure) {
  if (const auto* last = last_event(trace, failure.rank)) failure.last_sign = clocks.at(*last);
  const ObservedEvent* const origin = position == 0 ? nullptr : trace.find(failure.rank, position);
  if (origin != nullptr && origin->kind == EventKind::kOperation) {
    failure.hook = hook_of(clocks, *origin);
    if (failure.text.empty()) failure.text = origin->text;
  } else if (is_gone(failure) || failure.kind == to_string(FailureKind::kBusy)) {
    failure.hook = running_hook(trace, clocks, failure.rank);
  }
  if (is_gone(failure)) failure.own_phase = own_phase_of(trace, clocks, failure.rank);
}

using EventsByRank = std::map<int, const ObservedEvent*>;  // by the failing rank

// What each rank was told.
std::map<int, EventsByRank> told_maps(const Trace& trace) {
  std::map<int, EventsByRank> maps;
  for (const auto& [rank, events] : trace.events)
    for (const auto& event : events)
      if (event.kind == EventKind::kFailure) maps[rank].emplace(event.peer < 0 ? rank : event.peer, &event);
  return maps;
}

std::string summary_of(const EventsByRank& map) {
  std::string text;
  for (const auto& [rank, event] : map) text += std::to_string(rank) + " " + std::string(event->name) + "\n";
  return text;
}

// The map that most ranks were told: others have it who ended alone, as those do who were cut off or stood still. `others`: they.
std::optional<EventsByRank> common_map(const Trace& trace, std::vector<int>& others) {
  const auto maps = told_maps(trace);
  std::map<std::string, std::vector<int>> ranks;
  for (const auto& [rank, map] : maps) ranks[summary_of(map)].push_back(rank);
  const auto most =
      std::max_element(ranks.begin(), ranks.end(), [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  if (most == ranks.end()) return std::nullopt;
  for (const auto& [rank, map] : maps)
    if (summary_of(map) != most->first) others.push_back(rank);
  return maps.at(most->second.front());
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

// Where nobody was told anything, hooks that threw, and ranks whose traces end first, are all there is.
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
    } else if (const auto hook = running_hook(trace, clocks, rank)) {
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

// Those who were left waited for the ones that were lost or silent from their last sign of life until they were given up.
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
          // Of two who noticed, the coordinator counts.
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
    // It may have written its trace on after it was given up, having come back.
    if (failure.last_sign && *failure.last_sign > *given_up) wait.since = last_heard;
    wait.duration = *given_up - wait.since;
    wait.was_answered = false;
    if (!longest || wait.duration > longest->duration) longest = std::move(wait);
  }
  return longest;
}

struct Noticing {
  const Trace& trace;
  const std::vector<TracedMessage>& messages;
  const TraceClocks& clocks;
  const Diagnosis& diagnosis;
  std::vector<TracedNotice> notices;

  void add(int rank, std::string text) { notices.push_back({rank, std::move(text)}); }
  bool has_failed(int rank) const {
    return std::any_of(diagnosis.failures.begin(), diagnosis.failures.end(),
                       [&](const auto& failure) { return failure.rank == rank; });
  }

  void differing_maps() {
    std::vector<int> others;
    common_map(trace, others);
    if (!others.empty())
      add(others.front(), name_ranks(others) + (others.size() == 1 ? " was" : " were") +
                              " told another failure map: cut off from the rest, or not running for a while");
  }

  void stragglers() {
    for (const auto& phase : diagnosis.phases) {
      if (phase.slowest_rank < 0 || phase.slowest < kStragglerMin + phase.median || phase.slowest < kStragglerRatio * phase.median)
        continue;
      add(phase.slowest_rank,
          phase.name == "join"
              ? "rank " + std::to_string(phase.slowest_rank) + " called " + in_text(phase.slowest) + " after the first one"
              : "rank " + std::to_string(phase.slowest_rank) + " took " + in_text(phase.slowest) + " for " + phase.name +
                    ", half of the ranks at most " + in_text(phase.median));
    }
  }

  void uneven_bytes() {
    std::map<int, std::uint64_t> bytes;
    std::uint64_t all = 0;
    for (const auto& [rank, events] : trace.events)
      for (const auto& event : events)
        if (event.kind == EventKind::kBegan && event.bytes != 0) all += (bytes[rank] = event.bytes);
    if (bytes.empty()) return;
    const auto most =
        std::max_element(bytes.begin(), bytes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    const std::uint64_t mean = all / trace.events.size();
    if (most->second > kUnevenBytesMin + mean && most->second > 2 * mean)
      add(most->first, "the plan is uneven: rank " + std::to_string(most->first) + " moves " + std::to_string(most->second >> 20) +
                           " MiB, on average a rank moves " + std::to_string(mean >> 20) + " MiB");
  }

  void lost() {
    for (const auto& message : lost_messages(trace, messages, clocks)) {
      if (has_failed(message.to)) continue;
      add(message.to, std::string(message.sent->name) + " from rank " + std::to_string(message.from) + " to rank " +
                          std::to_string(message.to) + " never arrived");
    }
  }

  void violated_causes() {
    for (const auto& violation : clocks.violations())
      add(violation.rank, "messages between ranks " + std::to_string(violation.rank) + " and " + std::to_string(violation.other) +
                              " were handled before they were sent, by " + in_text(violation.by) + ": a clock has jumped");
  }

  void clock_jumps() {
    for (const auto& [rank, events] : trace.events)
      for (std::size_t i = 1; i < events.size(); ++i) {
        const Duration wall = events[i].wall_time - events[i - 1].wall_time;
        const Duration monotonic = events[i].time - events[i - 1].time;
        const Duration jump = wall - monotonic;
        if (jump < kJumpMin && jump > -kJumpMin) continue;
        add(rank, "the wall clock of rank " + std::to_string(rank) + " was set " + (jump > Duration(0) ? "on" : "back") + " by " +
                      in_text(jump > Duration(0) ? jump : -jump));
        break;
      }
  }

  void links_and_restarts() {
    std::map<int, std::pair<int, int>> seen;  // by rank: restarts, lost links
    for (const auto& [rank, events] : trace.events)
      for (const auto& event : events) {
        if (event.name == kRestarted) ++seen[rank].first;
        // Of those that failed it is known already, and those that left have ended.
        if (event.kind == EventKind::kHandled && event.name == kLinkDown && !has_failed(event.peer) && !has_left(event))
          ++seen[rank].second;
      }
    for (const auto& [rank, counts] : seen) {
      if (counts.first > 0)
        add(rank, std::to_string(counts.first) + " actors of rank " + std::to_string(rank) + " died and were restarted");
      if (counts.second > 0) add(rank, "rank " + std::to_string(rank) + " lost its connection to ranks that went on");
    }
  }

  bool has_left(const ObservedEvent& event) const {
    const auto call = trace.attempt.calls.find(event.peer);
    return call == trace.attempt.calls.end() || call->second.has_ended;
  }

  void ignored() {
    std::map<std::string_view, std::pair<int, std::set<int>>> reasons;
    for (const auto& [rank, events] : trace.events)
      for (const auto& event : events) {
        if (event.kind != EventKind::kState || event.ok || event.name == kStoppedTimer || event.name == kRestarted) continue;
        auto& [count, ranks] = reasons[event.name];
        ++count;
        ranks.insert(rank);
      }
    for (const auto& [reason, seen] : reasons)
      add(-1, std::to_string(seen.first) + " ignored on " + name_ranks({seen.second.begin(), seen.second.end()}) + ": " +
                  std::string(reason));
  }

  void queues() {
    const ObservedEvent* longest = nullptr;
    for (const auto& [rank, events] : trace.events)
      for (const auto& event : events)
        if (event.queued > kQueuedMin && (longest == nullptr || event.queued > longest->queued)) longest = &event;
    if (longest != nullptr)
      add(longest->rank, std::string(longest->name) + " waited " + in_text(longest->queued) + " in the mailbox of the " +
                             std::string(longest->actor) + " of rank " + std::to_string(longest->rank) +
                             ": its threads had no time");
  }
};

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

  Noticing noticing{trace, messages, clocks, diagnosis, {}};
  noticing.differing_maps();
  noticing.violated_causes();
  noticing.clock_jumps();
  noticing.links_and_restarts();
  noticing.lost();
  noticing.stragglers();
  noticing.uneven_bytes();
  noticing.queues();
  noticing.ignored();
  diagnosis.notices = std::move(noticing.notices);
  return diagnosis;
}

}  // namespace cairn
