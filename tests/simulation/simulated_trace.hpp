// The trace of one simulated rank, recorded by the shipping tracer on the rank's own
// clocks. The trace ends when the process ends.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include <cairn/actors/traced.hpp>
#include <cairn/base/bytes.hpp>
#include <cairn/base/clock.hpp>
#include <cairn/base/observer.hpp>
#include <cairn/tests/simulation/virtual_time.hpp>
#include <cairn/tracing/trace_writer.hpp>

namespace cairn::simulation {

// A rank's clocks: virtual time plus an offset that depends on the rank.
class RankClock final : public Clock {
 public:
  RankClock(const VirtualTime& time, int rank) : time_(time), rank_(rank) {}
  MonotonicTime now() const override { return MonotonicTime(std::chrono::hours(1 + rank_) + time_.now()); }
  WallTime wall_now() const override {
    return WallTime(std::chrono::hours(24 * 365 * 50) + std::chrono::milliseconds(37 * rank_) + time_.now());
  }

 private:
  const VirtualTime& time_;
  const int rank_;
};

class SimulatedTrace {
 public:
  // `directory` is where the file goes; "": nothing is recorded.
  SimulatedTrace(const VirtualTime& time, std::string directory, const std::string& incarnation, int rank, int world_size);
  ~SimulatedTrace() { close(); }
  SimulatedTrace(const SimulatedTrace&) = delete;
  SimulatedTrace& operator=(const SimulatedTrace&) = delete;

  // The process has ended: later events are not recorded.
  void close();
  bool is_on() const { return file_ != nullptr; }

  // Returns the taps of the actors; null: nothing is recorded.
  Tap* supervisor() { return is_on() ? &supervisor_ : nullptr; }
  Tap* coordinator() { return is_on() ? &coordinator_ : nullptr; }
  // Records an event of another actor. Returns the event's id, or 0 if nothing is recorded.
  std::uint64_t record(std::string_view actor, ObservedEvent event, std::uint64_t cause);
  MonotonicTime now() const { return clock_.now(); }

  // Sets `cause` as the cause of every event recorded during its lifetime.
  class Because {
   public:
    Because(SimulatedTrace& trace, std::uint64_t cause) : trace_(trace), before_(trace.cause()) { trace.set_cause(cause); }
    ~Because() { trace_.set_cause(before_); }
    Because(const Because&) = delete;
    Because& operator=(const Because&) = delete;

   private:
    SimulatedTrace& trace_;
    const std::uint64_t before_;
  };
  std::uint64_t cause() const { return supervisor_.cause(); }

 private:
  class File;
  void set_cause(std::uint64_t cause) {
    supervisor_.set_cause(cause);
    coordinator_.set_cause(cause);
  }

  const RankClock clock_;
  const std::shared_ptr<File> file_;  // null: nothing is recorded
  const std::shared_ptr<Tracer> tracer_;
  Tap supervisor_;
  Tap coordinator_;
};

}  // namespace cairn::simulation
