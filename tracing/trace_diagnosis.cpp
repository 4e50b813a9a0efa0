#include <cairn/tracing/trace_diagnosis.hpp>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include <cairn/base/failure.hpp>
#include <cairn/tracing/trace_notices.hpp>
#include <cairn/tracing/trace_phases.hpp>
#include <cairn/tracing/trace_text.hpp>

namespace cairn {
namespace {

// Returns the hook that an event belongs to.
TracedHook hook_of(const TraceClocks& clocks, const ObservedEvent& event) {
  const bool has_ended = event.kind == EventKind::kOperation;
  return {std::string(event.name), event.actor, clocks.begin_of(event), has_ended ? std::optional(event.duration) : std::nullopt};
}

// Returns the hook that ran in a rank when it gave its last sign, the latest one of several.
std::optional<TracedHook> running_hook(const Trace& trace, const TraceClocks& clocks, const ObservedEvent& sign) {
  const auto hooks = hook_events(trace.events.at(sign.rank));
  for (auto hook = hooks.rbegin(); hook != hooks.rend(); ++hook) {
    const bool has_ended = (*hook)->kind == EventKind::kOperation;
    // The cause of a hook's end is its beginning.
    const bool began_before = (has_ended ? (*hook)->cause : (*hook)->id) <= sign.id;
    if (!began_before || (has_ended && (*hook)->id <= sign.id)) continue;
    TracedHook running = hook_of(clocks, **hook);
    running.duration.reset();
    return running;
  }
  return std::nullopt;
}

bool is_gone(const TracedFailure& failure) { return failure.kind == FailureKind::kLost || failure.kind == FailureKind::kSilent; }

bool is_about_a_connection(const ObservedEvent& event) { return event.as<LinkChange>() != nullptr; }
bool is_end_of_connection(const ObservedEvent& event) { return event.is(LinkChange::kDown) || event.is(LinkChange::kLeft); }

// The events in which other ranks missed a rank first, and received from it last. Null: none.
struct Contact {
  const ObservedEvent* first_miss = nullptr;  // the connection to it was gone
  const ObservedEvent* last_message = nullptr;
};
using Contacts = std::map<int, Contact>;

Contacts contacts_of(const Trace& trace, const TraceClocks& clocks) {
  Contacts contacts;
  for (const auto& [rank, events] : trace.events)
    for (const auto& event : events) {
      if (event.kind != EventKind::kHandled || event.peer == rank) continue;
      Contact& contact = contacts[event.peer];
      const ObservedEvent*& first = contact.first_miss;
      const ObservedEvent*& last = contact.last_message;
      if (is_end_of_connection(event) && (first == nullptr || clocks.at(event) < clocks.at(*first))) first = &event;
      if (!is_about_a_connection(event) && (last == nullptr || clocks.at(event) > clocks.at(*last))) last = &event;
    }
  return contacts;
}

// Returns the last message that another rank received from the rank.
std::string heard_last(const TraceClocks& clocks, const Contact& contact) {
  const ObservedEvent* const last = contact.last_message;
  if (last == nullptr) return "no message from it arrived";
  return "rank " + std::to_string(last->rank) + " received " + name_of(*last) + " from it at " + time_of_day(clocks.at(*last)) +
         " UTC";
}

// Returns `TracedFailure::last_event`. `told`: the failure in another rank's map, or null.
const ObservedEvent* last_event_of(const Trace& trace, const TraceClocks& clocks, const TracedFailure& failure,
                                   const Contact& contact, const ObservedEvent* told) {
  const auto own = trace.events.find(failure.rank);
  if (own == trace.events.end() || own->second.empty()) return nullptr;
  const ObservedEvent* const last = &own->second.back();
  const ObservedEvent* const given_up = is_gone(failure) ? contact.first_miss : failure.kind == FailureKind::kBusy ? told : nullptr;
  if (given_up == nullptr) return last;
  // A process that was stopped may go on later, and a busy hook may end. What a rank did after the
  // others had given it up is not its last sign.
  const WallTime time = clocks.at(*given_up);
  const auto after =
      std::find_if(own->second.begin(), own->second.end(), [&](const auto& event) { return clocks.at(event) >= time; });
  return after == own->second.begin() ? last : &*std::prev(after);
}

// Returns the answer that a rank owed after it reached a state, if it recorded none up to `sign`.
std::string unsent_answer(const Trace& trace, const ObservedEvent& reached, const ObservedEvent& sign) {
  const auto& events = trace.events.at(sign.rank);
  const auto state = *reached.as<RankState>();
  if (state != RankState::kPlanned && state != RankState::kReported) return "";
  bool has_failed = false;
  for (const auto& event : events) {
    if (event.id > sign.id) break;
    has_failed = has_failed || (event.kind == EventKind::kOperation && !event.ok);
    const auto* const kind = event.as<MessageKind>();
    if (event.id > reached.id && event.kind == EventKind::kSent && kind != nullptr && is_answer(*kind)) return "";
  }
  const bool loads = trace.attempt.operation == Operation::kLoad;
  return std::string(", and had not sent ") + (has_failed                     ? to_string(MessageKind::kPhaseFailed)
                                               : state == RankState::kPlanned ? "its plan"
                                               : loads                        ? to_string(MessageKind::kReadDone)
                                                                              : to_string(MessageKind::kWritten));
}

// Returns what the rank itself recorded last, up to `sign`: a message to another rank, or a message
// that it handled without an effect.
std::string last_action_before(const Trace& trace, const ObservedEvent& sign) {
  const auto& events = trace.events.at(sign.rank);
  const ObservedEvent* action = nullptr;
  for (const auto& event : events) {
    if (event.id > sign.id) break;
    const bool is_message = (event.kind == EventKind::kSent || event.kind == EventKind::kHandled) && event.peer >= 0;
    const bool is_state = event.as<RankState>() != nullptr;
    if ((is_message && !is_about_a_connection(event)) || is_state || event.kind == EventKind::kCall) action = &event;
  }
  if (action == nullptr) return "";
  const std::string name = name_of(*action);
  switch (action->kind) {
    case EventKind::kSent: {
      const auto there = trace.events.find(action->peer);
      const bool is_known = there != trace.events.end();
      const bool arrived = is_known && std::any_of(there->second.begin(), there->second.end(), [&](const auto& event) {
                             return event.kind == EventKind::kHandled && event.peer == action->rank && event.cause == action->id;
                           });
      return "sent " + name + " to rank " + std::to_string(action->peer) +
             (arrived    ? ", which arrived"
              : is_known ? ", which did not arrive"
                         : "");
    }
    case EventKind::kHandled:
      return "received " + name + " from rank " + std::to_string(action->peer) + ", and did nothing about it";
    case EventKind::kCall:
      return "called " + name;
    default:
      return "reached the state `" + std::string(to_string(*action->as<RankState>())) + "`" + unsent_answer(trace, *action, sign);
  }
}

// Decides what became of a lost or silent rank, from what it did after the others missed it, from
// the end of its process, and from the text of the connection that was lost.
void decide_fate(const Trace& trace, const TraceClocks& clocks, const ObservedEvent* missed, TracedFailure& failure) {
  const int rank = failure.rank;
  const ObservedEvent* const sign = failure.last_event;
  const auto decide = [&](RankFate fate, std::string text) {
    failure.fate = fate;
    failure.fate_text = std::move(text);
  };
  const ObservedEvent* const last = sign == nullptr ? nullptr : &trace.events.at(rank).back();
  const auto call = trace.attempt.calls.find(rank);
  const bool has_outcome = call != trace.attempt.calls.end() && call->second.has_ended;
  // Twice the error: both clocks may be wrong by it.
  const bool went_on = last != nullptr && missed != nullptr && last != sign &&
                       (has_outcome || clocks.at(*last) > clocks.at(*missed) + 2 * clocks.error_max());
  const auto process = trace.job.processes.find(rank);
  const bool has_ended = process != trace.job.processes.end();
  const std::string end =
      has_ended ? "its process " + process->second.describe() + " at " + time_of_day(process->second.ended) + " UTC" : "";
  const bool left = missed != nullptr && missed->is(LinkChange::kLeft);
  // The goodbye of a links actor whose supervisor died. A new supervisor may go on after that.
  const bool has_died = missed != nullptr && missed->text.find("its supervisor died") != std::string::npos;
  const bool said_goodbye = left || has_died;

  // The order matters: a rank's own later events are stronger evidence than the end of its process,
  // which may have come much later.
  if (went_on && failure.kind == FailureKind::kSilent)
    return decide(RankFate::kFrozen,
                  "its process stood still from " + time_of_day(clocks.at(*sign)) + " UTC on, and later went on");
  if (went_on && !said_goodbye)
    return decide(RankFate::kCutOff, "it was cut off: it went on, at least until " + time_of_day(clocks.at(*last)) + " UTC");
  // A supervisor that an exception ends records its text. Older traces have the message alone.
  const ObservedEvent* told = nullptr;
  if (last != nullptr)
    for (const ObservedEvent& event : trace.events.at(rank))
      if (event.kind == EventKind::kOperation && !event.ok && event.name == "handler") told = &event;
  const bool is_told = told != nullptr;
  const ObservedEvent* const handled = is_told ? trace.find(rank, told->cause) : sign;
  if (said_goodbye && handled != nullptr && handled->kind == EventKind::kHandled && handled->actor == Actor::kSupervisor &&
      handled->peer >= 0)
    return decide(RankFate::kActorEnded, "its supervisor ended while it handled " + name_of(*handled) + " from rank " +
                                             std::to_string(handled->peer) + ": " +
                                             (is_told ? std::string(told->text.substr(0, told->text.find('\n')))
                                                      : "the output of rank " + std::to_string(rank) + " says why"));
  if (said_goodbye && sign == nullptr && !has_ended)
    return decide(RankFate::kUnknown, "it closed its connections: it left the world, or its supervisor ended");
  if (has_died) return decide(RankFate::kActorEnded, "its supervisor ended");
  if (said_goodbye)
    return decide(RankFate::kLeft, "it left the world in order, before the end of this call" + (has_ended ? "; " + end : ""));
  // cairn-launch ends the other ranks after one has failed. Such an end is not the cause of the
  // silence before it.
  if (has_ended && process->second.told && failure.kind == FailureKind::kSilent)
    return decide(RankFate::kFrozen, "its process was alive but did nothing; it ended only when cairn-launch asked it to");
  if (has_ended) return decide(RankFate::kEnded, end);
  if (sign == nullptr) return;
  decide(RankFate::kUnknown, failure.kind == FailureKind::kSilent
                                 ? "its trace ends there: its process stopped, or its machine or network is gone"
                                 : "its trace ends there: its process has probably ended");
}

TracedStoreOperation store_operation(const ObservedEvent& event) {
  // In a failed operation, the exception follows the URL.
  const std::string_view url = event.text.substr(0, event.ok ? event.text.npos : event.text.find(": "));
  // Without a '/', rfind gives npos, and npos + 1 is 0: the whole text.
  const std::string_view object = url.substr(url.rfind('/') + 1);
  return {event.rank, std::string(event.name), std::string(object), event.bytes, event.duration};
}

// Returns the store operation that failed in a hook, the last one before the hook's end.
std::optional<TracedStoreOperation> failed_store_of(const Trace& trace, const ObservedEvent& hook) {
  std::optional<TracedStoreOperation> failed;
  for (const auto& event : trace.events.at(hook.rank)) {
    if (event.id >= hook.id) break;
    if (event.id > hook.cause && event.kind == EventKind::kStore && !event.ok) failed = store_operation(event);
  }
  return failed;
}

// `position`: the event of the failed hook; 0 if there is none. `told`: as in `last_event_of`.
void add_what_the_trace_says(const Trace& trace, const TraceClocks& clocks, const Contacts& contacts, std::uint64_t position,
                             const ObservedEvent* told, TracedFailure& failure) {
  const auto found = contacts.find(failure.rank);
  const Contact contact = found == contacts.end() ? Contact{} : found->second;
  const ObservedEvent* const sign = failure.last_event = last_event_of(trace, clocks, failure, contact, told);
  if (sign != nullptr) failure.last_sign = clocks.at(*sign);
  const ObservedEvent* const origin = position == 0 ? nullptr : trace.find(failure.rank, position);
  if (origin != nullptr && origin->kind == EventKind::kOperation) {
    failure.hook = hook_of(clocks, *origin);
    // The map's text comes first: it is what the ranks have seen.
    if (failure.text.empty()) failure.text = origin->text;
    failure.store = failed_store_of(trace, *origin);
  } else if (sign != nullptr && (is_gone(failure) || failure.kind == FailureKind::kBusy)) {
    failure.hook = running_hook(trace, clocks, *sign);
  }
  // A rank that reported its own failure needs no guess about its fate.
  if (!is_gone(failure)) return;
  failure.own_phase = own_phase_of(trace, clocks, failure.rank);
  failure.last_action = sign == nullptr ? heard_last(clocks, contact) : last_action_before(trace, *sign);
  decide_fate(trace, clocks, contact.first_miss, failure);
}

std::vector<TracedFailure> told_failures(const Trace& trace, const TraceClocks& clocks, const Contacts& contacts) {
  std::vector<TracedFailure> failures;
  std::vector<int> others;
  const auto map = common_map(trace, others);
  if (!map) return failures;
  for (const auto& [whose, event] : *map) {
    TracedFailure failure;
    failure.rank = whose;
    if (const auto* kind = event->as<FailureKind>()) failure.kind = *kind;
    failure.code = event->code;
    failure.phase = event->phase;
    failure.text = event->text;
    add_what_the_trace_says(trace, clocks, contacts, event->number, event, failure);
    failures.push_back(std::move(failure));
  }
  return failures;
}

// If no rank received a failure map, infers failures from hooks that threw and from traces that end
// first.
std::vector<TracedFailure> concluded_failures(const Trace& trace, const TraceClocks& clocks, const Contacts& contacts) {
  std::vector<TracedFailure> failures;
  for (const auto& [rank, events] : trace.events) {
    const auto thrown = std::find_if(events.begin(), events.end(),
                                     [](const auto& event) { return event.kind == EventKind::kOperation && !event.ok; });
    TracedFailure failure;
    failure.rank = rank;
    failure.told = false;
    if (thrown != events.end()) {
      failure.kind = FailureKind::kRaised;
      failure.phase = thrown->phase;
      failure.text = thrown->text;
      add_what_the_trace_says(trace, clocks, contacts, thrown->id, nullptr, failure);
    } else if (const auto hook = events.empty() ? std::nullopt : running_hook(trace, clocks, events.back())) {
      failure.hook = hook;
      failure.text = "its trace ends within " + hook->name;
      failure.last_event = &events.back();
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
        if (is_about_it && is_end_of_connection(event)) {
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
  if (trace.attempt.is_running) return TracedEnd::kRunning;
  if (!has_outcome) return TracedEnd::kUnfinished;
  if (diagnosis.failures.empty()) return TracedEnd::kSucceeded;
  return trace.attempt.was_cancelled ? TracedEnd::kCancelled : TracedEnd::kFailed;
}

// Shorter operations are not worth a sentence, however short the call.
constexpr Duration kSlowStoreMin = std::chrono::milliseconds(100);
constexpr int kSlowStoreShare = 5;  // of the whole call's duration, at least one fifth

std::optional<TracedStoreOperation> slow_store_of(const Trace& trace, const Diagnosis& diagnosis) {
  const ObservedEvent* slowest = nullptr;
  for (const auto& [rank, events] : trace.events)
    for (const auto& event : events)
      if (event.kind == EventKind::kStore && (slowest == nullptr || event.duration > slowest->duration)) slowest = &event;
  if (slowest == nullptr || slowest->duration < kSlowStoreMin || kSlowStoreShare * slowest->duration < diagnosis.duration)
    return std::nullopt;
  return store_operation(*slowest);
}

constexpr Duration kSlowConnectionMin = std::chrono::milliseconds(100);

void find_longest(const std::vector<PathStep>& steps, Diagnosis& diagnosis) {
  std::map<std::pair<int, int>, TracedConnection> connections;
  Duration longest{0};
  for (const auto& step : steps) {
    if (step.duration > longest) diagnosis.longest_step = step;
    longest = std::max(longest, step.duration);
    if (step.sender < 0) continue;
    const auto [rank, other] = std::minmax(step.rank, step.sender);
    auto& connection = connections.emplace(std::pair(rank, other), TracedConnection{rank, other}).first->second;
    ++connection.messages;
    connection.duration += step.duration;
    connection.longest = std::max(connection.longest, step.duration);
  }
  longest = std::max(longest, kSlowConnectionMin);
  for (const auto& [ranks, connection] : connections) {
    if (connection.duration < longest || connection.duration < 2 * connection.longest) continue;
    diagnosis.slow_connection = connection;
    longest = connection.duration;
  }
}

// A deadline passes on all ranks at once. Ranks that failed otherwise come before those that only
// met it, or else the rank for which they waited.
void put_slowest_first(Diagnosis& diagnosis) {
  const auto has_met_deadline = [](const TracedFailure& failure) {
    return failure.kind == FailureKind::kCancelled && failure.code == ErrorCode::kDeadline;
  };
  auto& failures = diagnosis.failures;
  std::stable_partition(failures.begin(), failures.end(), std::not_fn(has_met_deadline));
  if (failures.empty() || !has_met_deadline(failures.front())) return;
  const auto slowest = std::find_if(failures.begin(), failures.end(), [&](const TracedFailure& failure) {
    return std::any_of(diagnosis.phases.begin(), diagnosis.phases.end(), [&](const TracedPhase& phase) {
      return phase.phase == failure.phase && phase.slowest_rank == failure.rank;
    });
  });
  if (slowest != failures.end()) std::rotate(failures.begin(), slowest, slowest + 1);
}

}  // namespace

Diagnosis diagnose(const Trace& trace, const std::vector<TracedMessage>& messages, const TraceClocks& clocks) {
  Diagnosis diagnosis;
  std::optional<WallTime> begin;
  std::optional<WallTime> end;
  for (const auto& [rank, events] : trace.events)
    for (const auto& event : events) {
      const WallTime time = clocks.at(event);
      if (event.kind == EventKind::kCall) begin = std::min(begin.value_or(time), time);
      // Once all outcomes are there, later events are not part of the call.
      const bool counts = event.kind == EventKind::kOutcome || !trace.attempt.has_ended();
      if (counts) end = std::max(end.value_or(time), time);
      // One rank that knows of the checkpoint outweighs any number that do not.
      const auto* const committed = event.as<Committed>();
      if (committed != nullptr && diagnosis.committed != Committed::kYes) diagnosis.committed = *committed;
      if (event.kind == EventKind::kBegan) diagnosis.bytes += event.bytes;
    }
  diagnosis.begin = begin.value_or(trace.attempt.begin());
  diagnosis.duration = end.value_or(diagnosis.begin) - diagnosis.begin;
  diagnosis.coordinator = coordinator_of(trace);
  const Contacts contacts = contacts_of(trace, clocks);
  // The order of these steps matters: `end` needs the failures, waits need phases, and notices need
  // all of the rest.
  diagnosis.failures = told_failures(trace, clocks, contacts);
  diagnosis.end = end_of(trace, diagnosis);
  if (diagnosis.end == TracedEnd::kUnfinished) diagnosis.failures = concluded_failures(trace, clocks, contacts);
  if (diagnosis.end == TracedEnd::kRunning)
    for (const auto& [rank, events] : trace.events)
      if (const auto hook = events.empty() ? std::nullopt : running_hook(trace, clocks, events.back()))
        diagnosis.in_hook.emplace(rank, *hook);

  diagnosis.phases = phases_of(trace, clocks, diagnosis.coordinator);
  for (const auto& phase : diagnosis.phases)
    if ((phase.phase == Phase::kWrite || phase.phase == Phase::kRead) && phase.duration > Duration(0))
      diagnosis.bytes_per_second = static_cast<double>(diagnosis.bytes) / std::chrono::duration<double>(phase.duration).count();
  put_slowest_first(diagnosis);
  diagnosis.wait = wait_for_the_gone(trace, clocks, diagnosis);
  if (!diagnosis.wait) diagnosis.wait = longest_wait(trace, clocks, diagnosis.coordinator);

  if (const ObservedEvent* const outcome = last_outcome(trace, clocks))
    find_longest(critical_path(trace, clocks, *outcome), diagnosis);
  diagnosis.slow_store = slow_store_of(trace, diagnosis);
  diagnosis.notices = notices_of(trace, messages, clocks, diagnosis);
  return diagnosis;
}

std::vector<const ObservedEvent*> hook_events(const std::vector<ObservedEvent>& events) {
  std::vector<const ObservedEvent*> hooks;
  std::map<std::uint64_t, const ObservedEvent*> open;  // ids are ascending
  for (const auto& event : events) {
    if (event.kind == EventKind::kBegan) open[event.id] = &event;
    if (event.kind != EventKind::kOperation) continue;
    open.erase(event.cause);
    hooks.push_back(&event);
  }
  for (const auto& [id, event] : open) hooks.push_back(event);
  return hooks;
}

bool is_answer(MessageKind kind) { return ends_part(kind); }

}  // namespace cairn
