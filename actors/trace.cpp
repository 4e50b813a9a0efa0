#include <cairn/actors/trace.hpp>

#include <algorithm>
#include <cstdio>
#include <type_traits>
#include <vector>

namespace cairn {
namespace {

static_assert(std::is_trivially_copyable_v<ObservedEvent> && std::is_trivially_destructible_v<ObservedEvent>);

const char* verb(EventKind kind) {
  switch (kind) {
    case EventKind::kSent:
      return "sent";
    case EventKind::kHandled:
      return "handled";
    case EventKind::kState:
      return "state";
    case EventKind::kOperation:
      return "ran";
  }
  return "?";
}

void append_line(std::string& text, const ObservedEvent& event) {
  const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(event.time.time_since_epoch()).count();
  char head[160];
  std::snprintf(head, sizeof head, "%lld.%06lld rank %d #%llu attempt %llu ", static_cast<long long>(micros / 1000000),
                static_cast<long long>(micros % 1000000), event.rank, static_cast<unsigned long long>(event.id),
                static_cast<unsigned long long>(event.attempt));
  text += head;
  text.append(event.actor).append(" ").append(verb(event.kind)).append(" ").append(event.name);
  if (event.peer >= 0) {
    const bool to_peer = event.kind == EventKind::kSent;
    text += (to_peer ? " to rank " : " from rank ") + std::to_string(event.peer);
  }
  if (event.cause != 0) text += " because of #" + std::to_string(event.cause);
  if (event.bytes != 0) text += ", " + std::to_string(event.bytes) + " bytes";
  if (event.duration.count() != 0) {
    text += ", " + std::to_string(std::chrono::duration_cast<std::chrono::microseconds>(event.duration).count()) + " us";
  }
  if (!event.ok) text += event.kind == EventKind::kState ? ", ignored" : ", failed";
  text += '\n';
}

}  // namespace

Tracer::Tracer(int rank, std::size_t ring_bytes, std::shared_ptr<Observer> observer, const Clock& clock)
    : rank_(rank),
      capacity_(std::max<std::size_t>(1, ring_bytes / sizeof(ObservedEvent))),
      observer_(std::move(observer)),
      clock_(clock),
      ring_(std::allocator<ObservedEvent>().allocate(capacity_)) {}

Tracer::~Tracer() { std::allocator<ObservedEvent>().deallocate(ring_, capacity_); }

std::uint64_t Tracer::record(ObservedEvent event) noexcept {
  event.rank = rank_;
  event.time = clock_.now();
  event.wall_time = clock_.wall_now();
  {
    std::lock_guard lock(mutex_);
    event.id = next_++;
    new (&ring_[(event.id - 1) % capacity_]) ObservedEvent(event);
  }
  if (observer_) observer_->on_event(event);
  return event.id;
}

std::string Tracer::dump() const {
  std::vector<ObservedEvent> events;
  {
    std::lock_guard lock(mutex_);
    const std::uint64_t count = std::min<std::uint64_t>(next_ - 1, capacity_);
    events.reserve(count);
    for (std::uint64_t id = next_ - count; id < next_; ++id) events.push_back(ring_[(id - 1) % capacity_]);
  }
  std::string text;
  for (const auto& event : events) append_line(text, event);
  return text;
}

}  // namespace cairn
