// The messages between ranks: what was sent joined with what was handled, and the ranks' clocks aligned by them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include <cairn/tracing/trace_directory.hpp>

namespace cairn {

// One of `sent` and `handled` may be null: where that rank's trace does not have it. Both point into the trace.
struct TracedMessage {
  int from = 0;
  int to = 0;
  const ObservedEvent* sent = nullptr;
  const ObservedEvent* handled = nullptr;
};

// All of one attempt, by sender, in the order of sending; those without a sending come last.
std::vector<TracedMessage> match_messages(const Trace& trace);

// Every message is handled after it was sent: so messages in both directions hold the difference of two clocks between two bounds, and the
// middle is off by at most half their distance. Ranks that have no such pair with each other are aligned over those in between; a rank
// that has none at all keeps its own wall clock.
//
// Clocks are taken to run equally fast: an attempt is short enough for that.
class TraceClocks {
 public:
  TraceClocks(const Trace& trace, const std::vector<TracedMessage>& messages);

  // On the wall clock of the reference, which is the rank with most messages.
  int reference() const { return reference_; }
  WallTime at(int rank, MonotonicTime time) const;
  WallTime at(const ObservedEvent& event) const { return at(event.rank, event.time); }
  // When what it tells began.
  WallTime begin_of(const ObservedEvent& event) const { return at(event.rank, event.time - event.duration); }

  // How far off that is at most, beside the reference; nothing for a rank whose wall clock had to do.
  std::optional<Duration> error(int rank) const;
  Duration error_max() const;          // of those that have one
  std::vector<int> unaligned() const;  // ranks that have none
  // Pairs of ranks whose messages contradict each other: by this much one was handled before it was sent, whatever the clocks. One of the
  // clocks has jumped, or the traces are not of one job.
  struct Violation {
    int rank = 0;
    int other = 0;
    Duration by{0};
  };
  const std::vector<Violation>& violations() const { return violations_; }

 private:
  struct Clock {
    Duration to_wall{0};  // of the rank itself
    Duration correction{0};
    std::optional<Duration> error;
  };
  std::map<int, Clock> clocks_;
  int reference_ = -1;
  std::vector<Violation> violations_;
};

// Sent to a rank whose trace goes on after that and has no sign of it.
std::vector<TracedMessage> lost_messages(const Trace& trace, const std::vector<TracedMessage>& messages, const TraceClocks& clocks);

}  // namespace cairn
