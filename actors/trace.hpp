// The trace tap of one rank: every message between actors, where it is sent and where it is handled, every hook and every change of
// state. A bounded ring always runs; an Observer gets each event as well. Thread-safe; recording allocates nothing.
//
// What is kept, and what never is: base/observer.hpp. An eighth of the ring is for the texts of events; where newer ones have taken its
// place, an event has lost its text.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <cairn/base/clock.hpp>
#include <cairn/base/observer.hpp>

namespace cairn {

// The ring at one moment, oldest event first.
struct TraceSnapshot {
  std::vector<ObservedEvent> events;  // their texts are in `texts`
  std::vector<char> texts;
  std::uint64_t lost = 0;  // events that newer ones have taken the place of
};

class Tracer {
 public:
  // `ring_bytes`: memory for the last events, at least one; 0 without an observer: nothing is recorded, but counted. `observer` may be null. `keeps_contents`: it wants the contents of decisions.
  Tracer(int rank, std::size_t ring_bytes, std::shared_ptr<Observer> observer, const Clock& clock = system_clock(),
         bool keeps_contents = false);
  ~Tracer();
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  // Fills in time, wall time, rank and id, keeps the event and passes it on. Returns its id. The names of `event` live for ever.
  std::uint64_t record(ObservedEvent event) noexcept;
  // From now on the ring keeps only the failures of this checkpointer (see ObservedEvent). The observer still gets all events.
  void keep_out_of_ring(std::uint32_t checkpointer);
  MonotonicTime now() const { return clock_.now(); }
  bool keeps_contents() const { return keeps_contents_; }

  TraceSnapshot snapshot() const;
  // The ring as text, one line an event, oldest first.
  std::string dump() const;

 private:
  struct Kept {
    ObservedEvent event;          // without its text
    std::uint64_t text_at = 0;    // in all that was ever written to texts_
    std::uint32_t text_size = 0;  // bytes
  };
  void keep(const ObservedEvent& event) noexcept;
  void keep_text(std::string_view text, Kept& kept) noexcept;

  const int rank_;
  const std::size_t capacity_;
  const bool is_off_;
  const std::shared_ptr<Observer> observer_;
  const Clock& clock_;
  const bool keeps_contents_;

  mutable std::mutex mutex_;
  Kept* const ring_;  // memory that no event has reached yet is not touched
  std::uint64_t next_ = 1;
  std::uint64_t kept_ = 0;            // events, since the start
  std::set<std::uint32_t> kept_out_;  // checkpointers
  const std::size_t text_capacity_;
  const std::unique_ptr<char[]> texts_;  // a ring too
  std::uint64_t texts_written_ = 0;      // bytes, ever
};

}  // namespace cairn
