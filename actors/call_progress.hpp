// How far one call is, on this rank and on all: hooks and the supervisor write it down, whoever wants to see it reads it. Thread-safe.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>

#include <cairn/actors/protocol/rank_machine.hpp>
#include <cairn/base/clock.hpp>
#include <cairn/messages/control.hpp>

namespace cairn {

class CallProgress {
 public:
  // Of this rank; in this order, but any may be left out.
  enum class Step : std::uint8_t {
    kJoining,
    kPlanning,
    kMoving,  // writes or reads
    kMoved,   // without a failure; waits for the others, and for the coordinator
  };

  struct Seen {
    Step step = Step::kJoining;
    protocol::Moved own;
    std::optional<MonotonicTime> moving_since;
    std::optional<protocol::JobProgress> job;  // as the coordinator has told last
    MonotonicTime job_at{};                    // when it did
  };
  Seen seen() const;

  // The same call is made anew.
  void restart();
  // From hooks: what there is to be moved, then each item that is. More than there is does not count.
  void start_moving(std::uint64_t items, std::uint64_t bytes);
  void add_item(std::uint64_t bytes);

  // From the supervisor.
  void follow(protocol::RankMachine::State state, const protocol::Effects& effects);  // a step of the machine
  void take(const protocol::JobProgress& job);

 private:
  void enter(Step step);

  mutable std::mutex mutex_;
  Seen seen_;
};

}  // namespace cairn
