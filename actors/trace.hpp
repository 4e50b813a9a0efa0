// The trace of one rank: every message between actors (except progress reports) when it is sent and
// when it is handled, every hook, and every state change. Events go to a bounded ring, unless its
// size is 0, and to the Observer, if there is one. Thread-safe. Recording does not allocate.
//
// base/observer.hpp says what events contain. An eighth of the ring holds the texts of events. An
// event whose text was overwritten by newer texts has no text.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <cairn/base/clock.hpp>
#include <cairn/base/mutex.hpp>
#include <cairn/base/observer.hpp>

namespace cairn {

// A copy of the ring, oldest event first.
struct TraceSnapshot {
  std::vector<ObservedEvent> events;  // their texts are in `texts`
  std::vector<char> texts;
  std::uint64_t lost = 0;  // events overwritten by newer ones
};

class Tracer {
 public:
  // `ring_bytes` is the size of the ring; 0 means no ring. A ring keeps at least the last event.
  // `observer` may be null. With neither a ring nor an observer, events get ids but are not
  // recorded.
  Tracer(int rank, std::size_t ring_bytes, std::shared_ptr<Observer> observer, const Clock& clock = system_clock());
  ~Tracer();

  // Fills in time, wall time, rank and id, keeps the event, passes it to the observer, and returns
  // its id. The event's `name` must never be freed.
  std::uint64_t record(ObservedEvent event) noexcept;
  // Keeps this checkpointer's events out of the ring from now on, except events whose `ok` is
  // false. The observer still gets all events.
  void keep_out_of_ring(std::uint32_t checkpointer);
  MonotonicTime now() const { return clock_.now(); }

  TraceSnapshot snapshot() const;
  // Returns the ring as text, one line per event, oldest first.
  std::string dump() const;

 private:
  struct Kept {
    ObservedEvent event;          // without its text
    std::uint64_t text_at = 0;    // position in all bytes ever written to texts_
    std::uint32_t text_size = 0;  // bytes
  };
  void keep(const ObservedEvent& event) noexcept CAIRN_REQUIRES(mutex_);
  void keep_text(std::string_view text, Kept& kept) noexcept CAIRN_REQUIRES(mutex_);

  const int rank_;
  const std::size_t capacity_;
  const bool is_off_;
  const std::shared_ptr<Observer> observer_;
  const Clock& clock_;

  // The mutex also guards the memory behind `ring_` and `texts_`.
  mutable Mutex mutex_;
  Kept* const ring_;  // pages are touched only when the first event is written to them
  std::uint64_t next_ CAIRN_GUARDED_BY(mutex_) = 1;
  std::uint64_t kept_ CAIRN_GUARDED_BY(mutex_) = 0;            // number of events kept since the start
  std::set<std::uint32_t> kept_out_ CAIRN_GUARDED_BY(mutex_);  // checkpointers
  const std::size_t text_capacity_;
  const std::unique_ptr<char[]> texts_;                       // a ring as well
  std::uint64_t texts_written_ CAIRN_GUARDED_BY(mutex_) = 0;  // bytes, since the start
};

}  // namespace cairn
