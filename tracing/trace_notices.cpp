#include <cairn/tracing/trace_notices.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include <cairn/base/rank_text.hpp>
#include <cairn/base/units.hpp>
#include <cairn/tracing/trace_phases.hpp>
#include <cairn/tracing/trace_text.hpp>

namespace cairn {
namespace {

// Imbalances below these values are not worth a notice.
constexpr Duration kStragglerMin = std::chrono::milliseconds(100);
constexpr std::uint64_t kUnevenBytesMin = 64u << 20;
constexpr Duration kQueuedMin = std::chrono::milliseconds(500);
constexpr Duration kJumpMin = std::chrono::milliseconds(100);
constexpr Duration kLateMin = std::chrono::milliseconds(100);
constexpr int kLateShare = 10;  // of the whole call's duration, at least a tenth
constexpr int kStragglerRatio = 2;

// One function per kind of notice. Each looks at the whole trace on its own, so that kinds can be
// added and removed freely.
struct Noticing {
  const Trace& trace;
  const std::vector<TracedMessage>& messages;
  const TraceClocks& clocks;
  const Diagnosis& diagnosis;
  std::vector<TracedNotice> notices;

  void add(int rank, std::string text) { notices.push_back({rank, std::move(text)}); }
  // Beside a failure, the slowness of other ranks is noise.
  void add_slowness(int rank, std::string text) {
    if (diagnosis.failures.empty() || has_failed(rank)) add(rank, std::move(text));
  }
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

  // The one that had run longest.
  void stacks() {
    const ObservedEvent* longest = nullptr;
    for (const auto& [rank, events] : trace.events)
      for (const auto& event : events)
        if (event.kind == EventKind::kStack && (longest == nullptr || event.duration > longest->duration)) longest = &event;
    if (longest == nullptr) return;
    const std::string object = longest->ok && !longest->text.empty() ? " of " + std::string(longest->text) : "";
    add(longest->rank, "rank " + std::to_string(longest->rank) + " was in " + name_of(*longest) + object + " (its " +
                           to_string(longest->actor) + ") for " + human_duration(longest->duration) +
                           " when its stack was taken: `cairn trace explain` shows it");
  }

  void stragglers() {
    for (const auto& phase : diagnosis.phases) {
      if (phase.slowest_rank < 0 || phase.slowest < kStragglerMin + phase.median || phase.slowest < kStragglerRatio * phase.median)
        continue;
      // When ranks called is compared between clocks, all other durations are of one clock.
      if (phase.phase == Phase::kJoin && phase.slowest <= 2 * clocks.error_max()) continue;
      add_slowness(
          phase.slowest_rank,
          phase.phase == Phase::kJoin
              ? "rank " + std::to_string(phase.slowest_rank) + " called " + human_duration(phase.slowest) + " after the first one"
              : "rank " + std::to_string(phase.slowest_rank) + " took " + human_duration(phase.slowest) + " for " +
                    to_string(phase.phase) + ", half of the ranks at most " + human_duration(phase.median));
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
    // Ranks without data to move count too: an uneven plan leaves them idle.
    const std::uint64_t mean = all / trace.events.size();
    if (most->second > kUnevenBytesMin + mean && most->second > 2 * mean)
      add(most->first, "the plan is uneven: rank " + std::to_string(most->first) + " moves " + human_bytes(most->second) +
                           ", on average a rank moves " + human_bytes(mean));
  }

  void lost() {
    for (const auto& message : lost_messages(trace, messages, clocks)) {
      // A failed rank is reported as such; its lost messages follow from that.
      if (has_failed(message.to)) continue;
      add(message.to, name_of(*message.sent) + " from rank " + std::to_string(message.from) + " to rank " +
                          std::to_string(message.to) + " never arrived");
    }
  }

  void violated_causes() {
    for (const auto& violation : clocks.violations())
      add(violation.rank, "messages between ranks " + std::to_string(violation.rank) + " and " + std::to_string(violation.other) +
                              " were handled before they were sent, by " + human_duration(violation.by) + ": a clock has jumped");
  }

  void clock_jumps() {
    for (const auto& [rank, events] : trace.events)
      for (std::size_t i = 1; i < events.size(); ++i) {
        const Duration wall = events[i].wall_time - events[i - 1].wall_time;
        const Duration monotonic = events[i].time - events[i - 1].time;
        const Duration jump = wall - monotonic;
        // The two clocks are read one after the other. A thread that is held up in between looks
        // like a small jump.
        if (jump < kJumpMin && jump > -kJumpMin) continue;
        add(rank, "the wall clock of rank " + std::to_string(rank) + " was set " + (jump > Duration(0) ? "on" : "back") + " by " +
                      human_duration(jump > Duration(0) ? jump : -jump));
        break;
      }
  }

  void links_and_restarts() {
    for (const auto& [rank, events] : trace.events) {
      int restarts = 0;
      // One notice per peer, however often the connection broke.
      std::set<int> lost;
      for (const auto& event : events) {
        if (event.as<Restarted>() != nullptr) ++restarts;
        // Skip peers that failed, which are already reported, and peers that left at their end.
        const bool is_lost = event.is(LinkChange::kDown) || event.is(LinkChange::kLeft);
        if (!is_lost || has_failed(event.peer) || has_left(event) || !lost.insert(event.peer).second) continue;
        const auto peer = trace.events.find(event.peer);
        const bool went_on = peer != trace.events.end() && !peer->second.empty() &&
                             clocks.at(peer->second.back()) > clocks.at(event) + clocks.error_max();
        add(event.peer, "rank " + std::to_string(rank) + " lost its connection to rank " + std::to_string(event.peer) +
                            (went_on ? ", which went on" : ", which recorded nothing more") +
                            (event.text.empty() ? "" : ": " + std::string(event.text)));
      }
      if (restarts > 0)
        add(rank, std::to_string(restarts) + " actors of rank " + std::to_string(rank) + " died and were restarted");
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
        if (!event.is(Ignored::kInput)) continue;
        // By reason, because a thousand ranks often ignore the same message.
        auto& [count, ranks] = reasons[event.name];
        ++count;
        ranks.insert(rank);
      }
    for (const auto& [reason, seen] : reasons)
      add(-1, std::to_string(seen.first) + " ignored on " + name_ranks({seen.second.begin(), seen.second.end()}) + ": " +
                  std::string(reason));
  }

  // The longest one only: a process without time delays every message.
  void queues() {
    const ObservedEvent* longest = nullptr;
    for (const auto& [rank, events] : trace.events)
      for (const auto& event : events)
        if (event.queued > kQueuedMin && (longest == nullptr || event.queued > longest->queued)) longest = &event;
    if (longest != nullptr)
      add(longest->rank, name_of(*longest) + " waited " + human_duration(longest->queued) + " in the mailbox of the " +
                             std::string(to_string(longest->actor)) + " of rank " + std::to_string(longest->rank) +
                             ": its threads had no time");
  }

  // A rank whose trace ends while the others went on.
  void ended_early() {
    if (diagnosis.end == TracedEnd::kUnfinished || diagnosis.end == TracedEnd::kRunning) return;
    for (const auto& [rank, call] : trace.attempt.calls) {
      if (call.has_ended || !call.was_called || has_failed(rank)) continue;
      const auto process = trace.job.processes.find(rank);
      add(rank, "the trace of rank " + std::to_string(rank) +
                    " ends before it had the outcome: it was lost, or cut off, after its part" +
                    (process == trace.job.processes.end() ? "" : "; its process " + process->second.describe()));
    }
  }

  // A rank that asked and got no answer.
  void unanswered() {
    if (diagnosis.end != TracedEnd::kUnfinished) return;
    for (const auto& [rank, events] : trace.events) {
      const ObservedEvent* asked = nullptr;
      for (const auto& event : events) {
        if (event.kind == EventKind::kSent && event.peer >= 0 && event.actor == Actor::kSupervisor) asked = &event;
        if (event.kind == EventKind::kHandled && event.peer >= 0 && event.ok) asked = nullptr;
        if (event.kind == EventKind::kOutcome) asked = nullptr;
      }
      // The coordinator asks many ranks; the longest wait covers those.
      if (asked != nullptr && rank != diagnosis.coordinator)
        add(rank, name_of(*asked) + " of rank " + std::to_string(rank) + " to rank " + std::to_string(asked->peer) +
                      " was not answered within " + human_duration(clocks.at(events.back()) - clocks.at(*asked)) +
                      ", where its trace ends");
    }
  }

  // The longest delay of a message, charged to the sender, to the way, or to the receiver.
  void late_messages() {
    const Duration least = std::max(kLateMin, diagnosis.duration / kLateShare);
    const TracedMessage* latest = nullptr;
    MessageDelay delay;
    Duration longest{0};
    for (const auto& message : messages) {
      const MessageDelay it = delay_of(trace, message, clocks);
      const Duration most = std::max({it.in_sender, it.on_the_way, it.in_receiver});
      // Only the longest delay, because one slow rank delays many messages.
      if (most < least || most <= longest) continue;
      longest = most;
      latest = &message;
      delay = it;
    }
    if (latest == nullptr) return;
    const std::string name = name_of(*(latest->sent != nullptr ? latest->sent : latest->handled));
    const std::string from = "rank " + std::to_string(latest->from), to = "rank " + std::to_string(latest->to);
    if (longest == delay.in_sender)
      add_slowness(latest->from, from + " sent " + name + " to " + to + " " + human_duration(longest) + " late: it was held up");
    else if (longest == delay.in_receiver)
      add_slowness(latest->to, to + " acted on " + name + " from " + from + " " + human_duration(longest) +
                                   " after it received it: it was held up");
    else
      add_slowness(latest->to, name + " from " + from + " came to " + to + " " + human_duration(longest) + " after it was sent: " +
                                   (delay.receiver_was_quiet ? "the connection was slow, or " + to + " did not run"
                                                             : "the connection was slow, because " + to + " was running"));
  }

  // Requests and messages that had to be repeated.
  void retries() {
    std::map<MessageKind, std::set<int>> seen;
    for (const auto& [rank, events] : trace.events) {
      // More than one Join to the same rank is a retry.
      std::map<int, int> joins;
      for (const auto& event : events) {
        if (event.kind != EventKind::kSent || event.peer < 0) continue;
        const bool is_again = event.is(MessageKind::kJoin) && ++joins[event.peer] > 1;
        if (is_again || event.is(MessageKind::kNeedLocalPlan)) seen[*event.as<MessageKind>()].insert(rank);
      }
    }
    for (const auto& [kind, who] : seen)
      add(who.size() == 1 ? *who.begin() : -1,
          name_ranks({who.begin(), who.end()}) +
              (kind == MessageKind::kJoin
                   ? " joined once more"
                   : std::string(" asked for a plan that was to be known already (") + to_string(kind) + ")"));
  }

  void differing_replicas() {
    for (const auto& [rank, events] : trace.events)
      for (const auto& event : events)
        if (event.kind == EventKind::kOperation && event.ok && event.name == "create_global_plan" && !event.text.empty())
          add(rank, std::string(event.text));
  }

  void slow_stores() {
    for (const auto& [rank, events] : trace.events)
      for (const auto& event : events)
        if (event.kind == EventKind::kStore && !event.ok && !has_failed(rank))
          add(rank, std::string(event.name) + " of the store of rank " + std::to_string(rank) +
                        " failed, and the call went on: " + std::string(event.text));
    if (const auto& slow = diagnosis.slow_store)
      add_slowness(slow->rank, "rank " + std::to_string(slow->rank) + ": " + describe(*slow));
  }
};

}  // namespace

std::vector<TracedNotice> notices_of(const Trace& trace, const std::vector<TracedMessage>& messages, const TraceClocks& clocks,
                                     const Diagnosis& diagnosis) {
  Noticing noticing{trace, messages, clocks, diagnosis, {}};
  // Most important first: contradictions in the traces, then broken connections, then slowness,
  // then details.
  noticing.stacks();
  noticing.differing_maps();
  noticing.violated_causes();
  noticing.clock_jumps();
  noticing.links_and_restarts();
  noticing.lost();
  noticing.differing_replicas();
  noticing.ended_early();
  noticing.unanswered();
  noticing.slow_stores();
  noticing.late_messages();
  noticing.stragglers();
  noticing.uneven_bytes();
  noticing.retries();
  noticing.queues();
  noticing.ignored();
  return std::move(noticing.notices);
}

}  // namespace cairn
