// Pairs the messages that ranks sent with those that ranks handled, and uses the pairs to align the
// ranks' clocks.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include <cairn/tracing/trace_directory.hpp>

namespace cairn {

// A message between ranks, with pointers into the trace. `sent` is null if the sender's trace does
// not contain that event. `handled` is null if the receiver's trace does not contain that event.
struct TracedMessage {
  int from = 0;
  int to = 0;
  const ObservedEvent* sent = nullptr;
  const ObservedEvent* handled = nullptr;
};

// Returns all messages of one attempt, grouped by sender. The messages of one sender are in the
// order of sending. Messages without a sent event come last.
std::vector<TracedMessage> match_messages(const Trace& trace);

// Aligns clocks. Every message is handled after it was sent, so messages in both directions bound
// the difference of two clocks. The estimate is midway between the two bounds, so its error is at
// most half the distance between them. Ranks that did not exchange messages in both directions are
// aligned through other ranks. A rank that cannot be aligned keeps its own wall clock.
//
// Assumes that clocks run at the same speed, since an attempt is short.
class TraceClocks {
 public:
  TraceClocks(const Trace& trace, const std::vector<TracedMessage>& messages);

  // Returns the rank with the most messages. All times below are on the wall clock of that rank.
  int reference() const { return reference_; }
  WallTime at(int rank, MonotonicTime time) const;
  WallTime at(const ObservedEvent& event) const { return at(event.rank, event.time); }
  // Returns when the event's operation began.
  WallTime begin_of(const ObservedEvent& event) const { return at(event.rank, event.time - event.duration); }

  // Returns the maximum error relative to the reference; nothing for a rank that keeps its own wall
  // clock.
  std::optional<Duration> error(int rank) const;
  Duration error_max() const;          // the largest `error` of the aligned ranks
  std::vector<int> unaligned() const;  // the ranks that keep their own wall clock
  // Two ranks whose messages contradict each other: whatever the offset between their clocks, some
  // message was handled before it was sent. `by` is how far the lower bound of the offset lies
  // above the upper bound. The reason is that a clock jumped, or that the traces belong to
  // different jobs.
  struct Violation {
    int rank = 0;
    int other = 0;
    Duration by{0};
  };
  const std::vector<Violation>& violations() const { return violations_; }

 private:
  struct Clock {
    Duration to_wall{0};  // from the rank's own monotonic clock
    Duration correction{0};
    std::optional<Duration> error;
  };
  std::map<int, Clock> clocks_;
  int reference_ = -1;
  std::vector<Violation> violations_;
};

// Returns whether both events belong to the same run of one actor's handler. `before` must be an
// earlier event of the same rank.
bool is_in_handler_of(const ObservedEvent& before, const ObservedEvent& event);

// The delays of a message between the sender's decision and the receiver's reaction. A duration is
// 0 if the traces do not show it.
struct MessageDelay {
  Duration in_sender{0};    // from the previous event in the sender's handler until the message was sent
  Duration on_the_way{0};   // from sending to the start of handling, minus the maximum clock errors of both ranks
  Duration in_receiver{0};  // from the handled event to the receiver's first event that the message caused
  // The receiver recorded nothing for at least seven eighths of `on_the_way`. Then the connection
  // was slow, or the receiver's process did not run.
  bool receiver_was_quiet = false;
};
MessageDelay delay_of(const Trace& trace, const TracedMessage& message, const TraceClocks& clocks);

// Returns the messages that the receiver did not handle although its trace continues after they
// were sent.
std::vector<TracedMessage> lost_messages(const Trace& trace, const std::vector<TracedMessage>& messages, const TraceClocks& clocks);

}  // namespace cairn
