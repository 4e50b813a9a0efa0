// Sample events to write and read back.
#pragma once

#include <chrono>
#include <iterator>
#include <string>

#include <cairn/base/observer.hpp>
#include <cairn/tracing/trace_writer.hpp>

namespace cairn::testing {

inline TraceHeader header_of(int rank, int world_size, const std::string& incarnation = std::string(32, 'a')) {
  TraceHeader header = trace_header(incarnation, rank, world_size, TraceSource::kStream);
  header.process = 999'999'999;  // no system gives this number: the process has ended
  return header;
}

inline MonotonicTime at_ms(double milliseconds) {
  return MonotonicTime(std::chrono::duration_cast<Duration>(std::chrono::duration<double, std::milli>(milliseconds)));
}

// Every field differs from its default and from the same field of the previous event.
inline ObservedEvent full_event(std::uint64_t id) {
  ObservedEvent event;
  event.kind = static_cast<EventKind>(1 + id % 8);
  event.time = at_ms(static_cast<double>(id) * 1.5);
  event.wall_time = WallTime(std::chrono::seconds(1'700'000'000 + id));
  event.call = 200 + id;
  event.attempt = 100 + id;
  event.checkpointer = 0xdeadbeef;
  event.peer = static_cast<int>(id % 5);
  event.phase = static_cast<Phase>(1 + id % 6);
  const What subjects[] = {MessageKind::kJobProgress,
                           LinkChange::kLeft,
                           RankState::kEnding,
                           CoordinatorState::kDeciding,
                           SuccessionState::kAskingStore,
                           CallTurn::kResigned,
                           Timer::kWaiting,
                           Restarted{Actor::kCoordinator},
                           Ignored::kStoppedTimer,
                           Operation::kAgree,
                           FailureKind::kInternal,
                           Committed::kUnknown,
                           What()};
  event.what = subjects[id % std::size(subjects)];
  event.actor = Actor::kStorage;
  event.name = id % 2 == 0 ? "write_data" : "Written";
  event.code = static_cast<ErrorCode>(1 + id % 16);
  event.text = "the disk is full";
  event.number = 7 * id;
  event.bytes = 1000 * id;
  event.id = id;
  event.cause = id - 1;
  event.duration = std::chrono::microseconds(id);
  event.queued = std::chrono::nanoseconds(id);
  event.ok = id % 2 == 0;
  return event;
}

inline bool same(const ObservedEvent& a, const ObservedEvent& b) {
  return a.kind == b.kind && a.time == b.time && a.wall_time == b.wall_time && a.call == b.call && a.attempt == b.attempt &&
         a.checkpointer == b.checkpointer && a.peer == b.peer && a.phase == b.phase && a.what == b.what && a.actor == b.actor &&
         a.name == b.name && a.code == b.code && a.text == b.text && a.number == b.number && a.bytes == b.bytes && a.id == b.id &&
         a.cause == b.cause && a.duration == b.duration && a.queued == b.queued && a.ok == b.ok;
}

}  // namespace cairn::testing
