#include <cairn/actors/trace.hpp>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>
#include <type_traits>

#include <cairn/tracing/trace_text.hpp>

namespace cairn {
namespace {

static_assert(std::is_trivially_copyable_v<ObservedEvent> && std::is_trivially_destructible_v<ObservedEvent>);

constexpr std::size_t kTextShare = 8;  // this fraction of the ring holds texts

void append_line(std::string& text, const ObservedEvent& event) {
  const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(event.time.time_since_epoch()).count();
  char head[160];
  std::snprintf(head, sizeof head, "%lld.%06lld rank %d #%llu attempt %llu ", static_cast<long long>(micros / 1000000),
                static_cast<long long>(micros % 1000000), event.rank, static_cast<unsigned long long>(event.id),
                static_cast<unsigned long long>(event.attempt));
  text += head;
  text.append(to_string(event.actor)).append(" ").append(verb_of(event.kind)).append(" ").append(name_of(event));
  if (event.peer >= 0) {
    const bool to_peer = event.kind == EventKind::kSent;
    if (event.kind == EventKind::kFailure)
      text += " of rank " + std::to_string(event.peer);
    else
      text += (to_peer ? " to rank " : " from rank ") + std::to_string(event.peer);
  }
  if (event.cause != 0) text += " because of #" + std::to_string(event.cause);
  if (event.bytes != 0) text += ", " + std::to_string(event.bytes) + " bytes";
  if (event.duration.count() != 0) {
    text += ", " + std::to_string(std::chrono::duration_cast<std::chrono::microseconds>(event.duration).count()) + " us";
  }
  if (event.code) text.append(", ").append(to_string(*event.code));
  if (!event.text.empty()) text.append(": ").append(event.text);
  if (!event.ok && event.kind != EventKind::kFailure) text += event.kind == EventKind::kState ? ", ignored" : ", failed";
  text += '\n';
}

}  // namespace

Tracer::Tracer(int rank, std::size_t ring_bytes, std::shared_ptr<Observer> observer, const Clock& clock)
    : rank_(rank),
      capacity_(ring_bytes == 0 ? 0 : std::max<std::size_t>(1, (ring_bytes - ring_bytes / kTextShare) / sizeof(Kept))),
      is_off_(ring_bytes == 0 && observer == nullptr),
      observer_(std::move(observer)),
      clock_(clock),
      ring_(std::allocator<Kept>().allocate(capacity_)),
      text_capacity_(ring_bytes / kTextShare),
      texts_(new char[text_capacity_]) {}

Tracer::~Tracer() { std::allocator<Kept>().deallocate(ring_, capacity_); }

std::uint64_t Tracer::record(ObservedEvent event) noexcept {
  if (is_off_) {
    const MutexLock lock(mutex_);
    return next_++;
  }
  event.rank = rank_;
  event.time = clock_.now();
  event.wall_time = clock_.wall_now();
  event.text = event.text.substr(0, kEventTextMax);
  {
    const MutexLock lock(mutex_);
    event.id = next_++;
    if (!event.ok || kept_out_.count(event.checkpointer) == 0) keep(event);
  }
  if (observer_) observer_->on_event(event);
  return event.id;
}

void Tracer::keep_out_of_ring(std::uint32_t checkpointer) {
  const MutexLock lock(mutex_);
  kept_out_.insert(checkpointer);
}

void Tracer::keep(const ObservedEvent& event) noexcept {
  const std::uint64_t number = kept_++;
  if (capacity_ == 0) return;
  Kept& kept = *new (&ring_[number % capacity_]) Kept{event};
  kept.event.text = {};
  keep_text(event.text, kept);
}

void Tracer::keep_text(std::string_view text, Kept& kept) noexcept {
  if (text.empty() || text.size() > text_capacity_) return;
  // A text does not wrap around the end of the ring, so that it is contiguous.
  const std::size_t left = text_capacity_ - texts_written_ % text_capacity_;
  if (text.size() > left) texts_written_ += left;
  kept.text_at = texts_written_;
  kept.text_size = static_cast<std::uint32_t>(text.size());
  std::memcpy(texts_.get() + texts_written_ % text_capacity_, text.data(), text.size());
  texts_written_ += text.size();
}

TraceSnapshot Tracer::snapshot() const {
  TraceSnapshot taken;
  const MutexLock lock(mutex_);
  if (is_off_) return taken;
  const std::uint64_t count = std::min<std::uint64_t>(kept_, capacity_);
  taken.lost = kept_ - count;
  taken.events.reserve(count);
  taken.texts.assign(texts_.get(), texts_.get() + std::min<std::uint64_t>(texts_written_, text_capacity_));
  const std::uint64_t oldest_text = texts_written_ - std::min<std::uint64_t>(texts_written_, text_capacity_);
  for (std::uint64_t number = kept_ - count; number < kept_; ++number) {
    const Kept& kept = ring_[number % capacity_];
    taken.events.push_back(kept.event);
    if (kept.text_size != 0 && kept.text_at >= oldest_text)
      taken.events.back().text = {taken.texts.data() + kept.text_at % text_capacity_, kept.text_size};
  }
  return taken;
}

std::string Tracer::dump() const {
  const TraceSnapshot taken = snapshot();
  std::string text;
  for (const auto& event : taken.events) append_line(text, event);
  return text;
}

}  // namespace cairn
