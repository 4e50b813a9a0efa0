#include <cairn/tracing/trace_messages.hpp>

#include <algorithm>
#include <cstddef>
#include <set>
#include <unordered_map>
#include <utility>

namespace cairn {
namespace {

// Link events are not messages.
bool is_from_a_rank(const ObservedEvent& event) {
  return event.kind == EventKind::kHandled && event.peer >= 0 && event.as<LinkChange>() == nullptr;
}

// Do not align clocks whose difference or error is larger: nine years.
constexpr Duration kDifferenceMax{std::int64_t{1} << 58};

// Events of its rank after a message among which the receiver's reaction is looked for.
constexpr std::ptrdiff_t kReactionWithin = 256;

// Bounds for (clock of `b`) - (clock of `a`), for ranks a < b.
struct Bounds {
  std::optional<Duration> lower;
  std::optional<Duration> upper;
};

}  // namespace

std::vector<TracedMessage> match_messages(const Trace& trace) {
  std::vector<TracedMessage> messages;
  std::unordered_map<const ObservedEvent*, std::size_t> sent;  // indices in `messages`
  for (const auto& [rank, events] : trace.events)
    for (const auto& event : events) {
      if (event.kind != EventKind::kSent || event.peer < 0) continue;
      sent.emplace(&event, messages.size());
      messages.push_back({rank, event.peer, &event, nullptr});
    }
  for (const auto& [rank, events] : trace.events)
    for (const auto& event : events) {
      if (!is_from_a_rank(event)) continue;
      const auto found = sent.find(trace.find(event.peer, event.cause));
      // Damaged traces may name the id of a message to another rank.
      if (found != sent.end() && messages[found->second].to == rank)
        messages[found->second].handled = &event;
      else
        messages.push_back({event.peer, rank, nullptr, &event});
    }
  return messages;
}

TraceClocks::TraceClocks(const Trace& trace, const std::vector<TracedMessage>& messages) {
  for (const auto& [rank, events] : trace.events)
    if (!events.empty())
      clocks_[rank].to_wall = events.front().wall_time.time_since_epoch() - events.front().time.time_since_epoch();

  std::map<std::pair<int, int>, Bounds> bounds;
  std::map<int, std::size_t> degree;
  const auto wall = [&](const ObservedEvent& event, Duration before = Duration(0)) {
    return event.time.time_since_epoch() - before + clocks_[event.rank].to_wall;
  };
  for (const auto& message : messages) {
    if (message.sent == nullptr || message.handled == nullptr || message.from == message.to) continue;
    ++degree[message.from];
    ++degree[message.to];
    // handled + correction of `to` >= sent + correction of `from`.
    // A handler records its event at its end, so its duration is taken off.
    const Duration bound = wall(*message.sent) - wall(*message.handled, message.handled->duration);
    auto& pair = bounds[std::minmax(message.from, message.to)];
    if (message.from < message.to)
      pair.lower = std::max(pair.lower.value_or(bound), bound);
    else
      pair.upper = std::min(pair.upper.value_or(-bound), -bound);
  }
  if (clocks_.empty()) return;
  reference_ = clocks_.begin()->first;
  for (const auto& [rank, count] : degree)
    // The coordinator, in most cases: it exchanges messages with every rank, so errors add up over
    // one step only.
    if (count > degree[reference_]) reference_ = rank;

  for (auto& [pair, bound] : bounds) {
    if (!bound.lower || !bound.upper || *bound.lower <= *bound.upper) continue;
    violations_.push_back({pair.first, pair.second, *bound.lower - *bound.upper});
  }

  // Find the paths with the smallest total error from the reference (Dijkstra).
  clocks_[reference_].error = Duration(0);
  std::set<int> settled;
  while (true) {
    int next = -1;
    for (const auto& [rank, clock] : clocks_)
      if (clock.error && settled.count(rank) == 0 && (next < 0 || *clock.error < *clocks_[next].error)) next = rank;
    if (next < 0) break;
    settled.insert(next);
    for (const auto& [pair, bound] : bounds) {
      if ((pair.first != next && pair.second != next) || !bound.lower || !bound.upper) continue;
      const int other = pair.first == next ? pair.second : pair.first;
      const Duration width = *bound.upper - *bound.lower;
      // Larger values come from damaged times, and sums of them could overflow.
      if (*bound.lower < -kDifferenceMax || *bound.upper > kDifferenceMax) continue;
      // A negative width is a violation. Its size still tells how wrong the middle may be.
      const Duration error = *clocks_[next].error + (width < Duration(0) ? -width : width) / 2;
      const Duration middle = (*bound.lower + *bound.upper) / 2;
      auto& clock = clocks_[other];
      if (clock.error && *clock.error <= error) continue;
      const Duration correction = clocks_[next].correction + (pair.first == next ? middle : -middle);
      if (error > kDifferenceMax || correction > kDifferenceMax || correction < -kDifferenceMax) continue;
      clock.error = error;
      clock.correction = correction;
    }
  }
}

WallTime TraceClocks::at(int rank, MonotonicTime time) const {
  const auto found = clocks_.find(rank);
  if (found == clocks_.end()) return WallTime(time.time_since_epoch());
  return WallTime(time.time_since_epoch() + found->second.to_wall + found->second.correction);
}

std::optional<Duration> TraceClocks::error(int rank) const {
  const auto found = clocks_.find(rank);
  return found == clocks_.end() ? std::nullopt : found->second.error;
}

Duration TraceClocks::error_max() const {
  Duration most{0};
  for (const auto& [rank, clock] : clocks_) most = std::max(most, clock.error.value_or(Duration(0)));
  return most;
}

std::vector<int> TraceClocks::unaligned() const {
  std::vector<int> ranks;
  for (const auto& [rank, clock] : clocks_)
    if (!clock.error) ranks.push_back(rank);
  return ranks;
}

bool is_in_handler_of(const ObservedEvent& before, const ObservedEvent& event) {
  // The cause of a message from another rank is an id of that rank.
  const bool is_remote = before.kind == EventKind::kHandled && before.peer >= 0;
  return before.actor == event.actor && event.cause != 0 &&
         (before.id == event.cause || (!is_remote && before.cause == event.cause));
}

MessageDelay delay_of(const Trace& trace, const TracedMessage& message, const TraceClocks& clocks) {
  MessageDelay delay;
  if (const ObservedEvent* const sent = message.sent) {
    const auto& events = trace.events.at(sent->rank);
    // Backwards from the send event, at most to the event that caused the handler.
    for (const ObservedEvent* before = sent; before != events.data() && sent->cause != 0;) {
      --before;
      if (before->id < sent->cause) break;
      if (!is_in_handler_of(*before, *sent)) continue;
      delay.in_sender = sent->time - before->time;
      break;
    }
  }
  if (const ObservedEvent* const handled = message.handled) {
    const auto& events = trace.events.at(handled->rank);
    const ObservedEvent* const end = handled + std::min<std::ptrdiff_t>(kReactionWithin, events.data() + events.size() - handled);
    for (const ObservedEvent* after = handled + 1; after < end; ++after) {
      if (after->cause != handled->id || after->actor != handled->actor) continue;
      delay.in_receiver = after->time - handled->time;
      break;
    }
  }
  if (message.sent == nullptr || message.handled == nullptr) return delay;
  const auto unsure = clocks.error(message.from);
  const auto unsure_there = clocks.error(message.to);
  if (!unsure || !unsure_there) return delay;
  // Counts only the delay that clock errors cannot explain.
  const WallTime begin = clocks.at(*message.sent) + *unsure + *unsure_there;
  const WallTime end = clocks.begin_of(*message.handled);
  if (begin >= end) return delay;
  delay.on_the_way = end - begin;
  // The receiver may record other events just before this one when its process runs again.
  const ObservedEvent* const first = trace.events.at(message.to).data();
  WallTime next = end;
  Duration longest{0};
  // No events for at least seven eighths of the delay. Stops where no such gap is possible any
  // more: the receiver may have recorded thousands of events during the delay.
  const Duration quiet = delay.on_the_way - delay.on_the_way / 8;
  for (const ObservedEvent* at = message.handled; longest <= quiet && next - begin > quiet;) {
    const WallTime time = at == first ? begin : std::max(begin, clocks.at(*--at));
    longest = std::max(longest, Duration(next - time));
    next = std::min(next, time);
  }
  delay.receiver_was_quiet = longest > quiet;
  return delay;
}

std::vector<TracedMessage> lost_messages(const Trace& trace, const std::vector<TracedMessage>& messages,
                                         const TraceClocks& clocks) {
  std::vector<TracedMessage> lost;
  // A rank ignores messages after its own end.
  std::map<int, WallTime> last_seen;
  for (const auto& [rank, events] : trace.events)
    for (const auto& event : events) {
      if (event.kind == EventKind::kOutcome) break;
      const WallTime time = clocks.at(event);
      last_seen[rank] = std::max(last_seen.emplace(rank, time).first->second, time);
    }
  for (const auto& message : messages) {
    if (message.handled != nullptr) continue;
    const auto receiver = last_seen.find(message.to);
    if (receiver == last_seen.end() || trace.attempt.calls.count(message.to) == 0) continue;
    const WallTime sent = clocks.at(*message.sent);
    const Duration unsure = clocks.error(message.to).value_or(Duration(0)) + clocks.error(message.from).value_or(Duration(0));
    // The receiver was alive later: it would have recorded the message.
    if (receiver->second > sent + unsure) lost.push_back(message);
  }
  return lost;
}

}  // namespace cairn
