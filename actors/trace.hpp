// The trace tap of one rank: every message between actors, where it is sent and where it is handled, every hook and every change of
// state. A bounded ring always runs; an Observer gets each event as well. Thread-safe; recording allocates nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include <cairn/base/clock.hpp>
#include <cairn/base/observer.hpp>

namespace cairn {

class Tracer {
 public:
  // `ring_bytes`: memory for the last events, at least one. `observer` may be null.
  Tracer(int rank, std::size_t ring_bytes, std::shared_ptr<Observer> observer, const Clock& clock = system_clock());
  ~Tracer();
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  // Fills in time, wall time, rank and id, keeps the event and passes it on. Returns its id. The texts of `event` live for ever.
  std::uint64_t record(ObservedEvent event) noexcept;
  MonotonicTime now() const { return clock_.now(); }

  // The ring as text, one line an event, oldest first.
  std::string dump() const;

 private:
  const int rank_;
  const std::size_t capacity_;
  const std::shared_ptr<Observer> observer_;
  const Clock& clock_;

  mutable std::mutex mutex_;
  ObservedEvent* const ring_;  // memory that no event has reached yet is not touched
  std::uint64_t next_ = 1;
};

}  // namespace cairn
