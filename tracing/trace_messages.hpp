// Pairs the messages that ranks sent with those that ranks handled, and uses the pairs to align the
// ranks' clocks.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include <cairn/tracing/trace_directory.hpp>

namespace cairn {

// A message between ranks, with pointers into the trace. `sent` is null if the sender's trace lacks
// the event, and `handled` is null if the receiver's does.
struct TracedMessage {
  int from = 0;
  int to = 0;
  const ObservedEvent* sent = nullptr;
  const ObservedEvent* handled = nullptr;
};

// Returns all messages of one attempt by sender, in the order of sending. Messages without a sent
// event come last.
std::vector<TracedMessage> match_messages(const Trace& trace);

// Aligns clocks. Every message is handled after it was sent, so messages in both directions bound
// the difference of two clocks. The middle of the bounds is wrong by at most half their distance.
// Ranks that did not exchange messages in both directions are aligned through other ranks. A rank
// that cannot be aligned keeps its own wall clock.
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
  Duration error_max() const;          // over the aligned ranks
  std::vector<int> unaligned() const;  // the ranks that keep their own wall clock
  // A pair of ranks whose messages contradict each other: for any offset between the clocks, one
  // message was handled at least `by` before it was sent. A clock jumped, or the traces belong to
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

// Returns whether `event` happened in the handler that recorded `before`, an earlier event of the
// same actor.
bool is_in_handler_of(const ObservedEvent& before, const ObservedEvent& event);

// The delays of a message between the sender's decision and the receiver's reaction. A duration is
// 0 if the traces do not show it.
struct MessageDelay {
  Duration in_sender{0};    // from the previous event in the sender's handler until the message was sent
  Duration on_the_way{0};   // without the part that clock errors can explain
  Duration in_receiver{0};  // until the receiver acted on it
  // The receiver recorded nothing while the message was on its way: the connection was slow, or the
  // receiver's process did not run.
  bool receiver_was_quiet = false;
};
MessageDelay delay_of(const Trace& trace, const TracedMessage& message, const TraceClocks& clocks);

// Returns the messages that were sent to a rank whose trace continues afterwards without handling
// them.
std::vector<TracedMessage> lost_messages(const Trace& trace, const std::vector<TracedMessage>& messages, const TraceClocks& clocks);

}  // namespace cairn
