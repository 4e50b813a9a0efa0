// The observer of one simulated rank: passes every event of its actors to the rank, and keeps all
// of them as a trace if the world wants one. The trace ends when the process ends.
#pragma once

#include <string>

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

class SimulatedTrace final : public Observer {
 public:
  // `directory` is where the file goes; "": nothing is kept.
  SimulatedTrace(Observer& rank, const Clock& clock, std::string directory, TraceHeader header);
  ~SimulatedTrace() override { close(); }

  void on_event(const ObservedEvent& event) noexcept override;
  // The process has ended: later events are dropped.
  void close();

 private:
  Observer& rank_;
  const std::string path_;  // "": nothing is kept
  TraceEncoder encoder_;
  Bytes bytes_;
  bool closed_ = false;
};

}  // namespace cairn::simulation
