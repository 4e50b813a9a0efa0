// The one wrapper around every message between the actors of a rank: it takes the id of the event of sending along, and records
// both ends. Messages are plain records; inside a process nothing is serialised.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>

#include <caf/actor.hpp>
#include <caf/allowed_unsafe_message_type.hpp>
#include <caf/send.hpp>

#include <cairn/actors/trace.hpp>

namespace cairn {

template <class T>
struct Traced {
  T value;
  std::uint64_t id = 0;  // of the event of sending
};

// An address of an actor that may be held anywhere, by hooks that outlive the actor too: once closed, posting does nothing.
class Inbox {
 public:
  explicit Inbox(caf::actor target) : target_(std::move(target)) {}

  template <class T>
  void post(T message) {
    caf::actor target;
    {
      std::lock_guard lock(mutex_);
      target = target_;
    }
    if (target) caf::anon_send(target, std::move(message));
  }
  void close() {
    caf::actor released;
    std::lock_guard lock(mutex_);
    std::swap(released, target_);
  }

 private:
  std::mutex mutex_;
  caf::actor target_;
};

// One actor's end of the trace: what it sends and handles is recorded under its name.
class Tap {
 public:
  Tap(std::shared_ptr<Tracer> tracer, std::string_view actor) : tracer_(std::move(tracer)), actor_(actor) {}

  // A message type `T` has `trace_name(const T&)` and `trace_attempt(const T&)`, found by its namespace. One without a name (null) is
  // not recorded.
  template <class T>
  Traced<T> wrap(T value) {
    if (trace_name(value) == nullptr) return Traced<T>{std::move(value)};
    ObservedEvent event;
    event.kind = EventKind::kSent;
    event.attempt = trace_attempt(value);
    event.actor = actor_;
    event.name = trace_name(value);
    event.cause = cause_;
    const std::uint64_t id = tracer_->record(event);
    return Traced<T>{std::move(value), id};
  }

  // Runs `handler`; what is sent meanwhile has this message as its cause.
  template <class T, class Handler>
  void handle(const Traced<T>& message, Handler handler) {
    if (trace_name(message.value) == nullptr) return handler();
    Handling handling(*this, trace_name(message.value), trace_attempt(message.value), message.id);
    handler();
    handling.event.ok = true;
  }

  // The same for a message of another rank, recorded as it arrives: `cause` is an id in that rank's trace.
  template <class Handler>
  void handle_from(int peer, const char* name, std::uint64_t attempt, std::uint64_t bytes, std::uint64_t cause, Handler handler) {
    if (name == nullptr) return handler();
    cause_ = cause;
    cause_ = record(EventKind::kHandled, name, attempt, true, peer, bytes);
    handler();
    cause_ = 0;
  }

  std::uint64_t record(EventKind kind, std::string_view name, std::uint64_t attempt, bool ok, int peer = -1,
                       std::uint64_t bytes = 0) {
    ObservedEvent event;
    event.kind = kind;
    event.attempt = attempt;
    event.peer = peer;
    event.actor = actor_;
    event.name = name;
    event.bytes = bytes;
    event.cause = cause_;
    event.ok = ok;
    return tracer_->record(event);
  }

  const std::shared_ptr<Tracer>& tracer() const { return tracer_; }
  std::uint64_t cause() const { return cause_; }

 private:
  // Records the handled message when the handler has ended, by an exception too.
  struct Handling {
    Tap& tap;
    ObservedEvent event;
    MonotonicTime start;
    Handling(Tap& owner, std::string_view name, std::uint64_t attempt, std::uint64_t cause)
        : tap(owner), start(owner.tracer_->now()) {
      event.kind = EventKind::kHandled;
      event.attempt = attempt;
      event.actor = tap.actor_;
      event.name = name;
      event.cause = cause;
      event.ok = false;
      tap.cause_ = cause;
    }
    Handling(const Handling&) = delete;
    Handling& operator=(const Handling&) = delete;
    ~Handling() {
      event.duration = tap.tracer_->now() - start;
      tap.tracer_->record(event);
      tap.cause_ = 0;
    }
  };

  const std::shared_ptr<Tracer> tracer_;
  const std::string_view actor_;
  std::uint64_t cause_ = 0;
};

}  // namespace cairn

namespace caf {
template <class T>
struct allowed_unsafe_message_type<cairn::Traced<T>> : std::true_type {};
}  // namespace caf
