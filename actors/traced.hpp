// Wraps the messages between the actors of a rank, except those of the links actor. A wrapper
// carries the id of the send event. Both sending and handling are recorded, unless the message has
// no trace name. Messages are plain structs and are not serialised within a process.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include <caf/actor.hpp>
#include <caf/allowed_unsafe_message_type.hpp>
#include <caf/send.hpp>

#include <cairn/actors/trace.hpp>
#include <cairn/base/mutex.hpp>

namespace cairn {

template <class T>
struct Traced {
  T value;
  std::uint64_t id = 0;     // the id of the send event
  MonotonicTime sent_at{};  // set with `id`
};

// The address of an actor. Hooks that outlive the actor may hold an Inbox: after `close`, `post`
// does nothing.
class Inbox {
 public:
  explicit Inbox(caf::actor target) : target_(std::move(target)) {}

  template <class T>
  void post(T message) {
    caf::actor target;
    {
      const MutexLock lock(mutex_);
      target = target_;
    }
    if (target) caf::anon_send(target, std::move(message));
  }
  void close() {
    caf::actor released;
    const MutexLock lock(mutex_);
    std::swap(released, target_);
  }

 private:
  Mutex mutex_;
  caf::actor target_ CAIRN_GUARDED_BY(mutex_);
};

// Records the messages that one actor sends and handles, under the actor's name.
class Tap {
 public:
  Tap(std::shared_ptr<Tracer> tracer, Actor actor) : tracer_(std::move(tracer)), actor_(actor) {}

  // A message type `T` must have a function `bool describe(const T&, ObservedEvent&)`
  // (local_messages.hpp), found by argument-dependent lookup. `cause` 0 means the tap's current
  // cause.
  template <class T>
  Traced<T> wrap(T value, std::uint64_t cause = 0) {
    ObservedEvent event;
    if (!describe(value, event)) return Traced<T>{std::move(value)};
    event.kind = EventKind::kSent;
    event.cause = cause;
    const MonotonicTime now = tracer_->now();
    const std::uint64_t id = record(event);
    return Traced<T>{std::move(value), id, now};
  }

  // Runs `handler`, then records the message. Messages sent by `handler` have it as their cause.
  template <class T, class Handler>
  void handle(const Traced<T>& message, Handler handler) {
    ObservedEvent event;
    if (!describe(message.value, event)) return handler();
    event.kind = EventKind::kHandled;
    Handling handling(*this, event, message.id, message.sent_at);
    handler();
    handling.event.ok = true;
  }

  // As above, for a message of another rank, but records the message before `handler` runs. `event`
  // describes the message; its cause is an id in the sender's trace. If `event` has no MessageKind,
  // it is not recorded.
  template <class Handler>
  void handle_from(const ObservedEvent& event, Handler handler) {
    if (event.as<MessageKind>() == nullptr) return handler();
    cause_ = record(event);
    handler();
    cause_ = 0;
  }

  // Records the event with this tap's actor. If the event has no cause, or no call, fills in the
  // current one.
  std::uint64_t record(const ObservedEvent& event) { return record_as(actor_, event); }
  std::uint64_t record_as(Actor actor, ObservedEvent event) {
    event.actor = actor;
    if (event.call == 0) event.call = call_;
    if (event.cause == 0) event.cause = cause_;
    return tracer_->record(event);
  }
  std::uint64_t record(EventKind kind, std::string_view name, std::uint64_t attempt, bool ok, int peer = -1,
                       std::uint64_t bytes = 0) {
    ObservedEvent event;
    event.kind = kind;
    event.attempt = attempt;
    event.peer = peer;
    event.name = name;
    event.bytes = bytes;
    event.ok = ok;
    return record(event);
  }

  const std::shared_ptr<Tracer>& tracer() const { return tracer_; }
  std::uint64_t cause() const { return cause_; }
  // Sets the cause of the events recorded and messages sent from now on.
  void set_cause(std::uint64_t cause) { cause_ = cause; }
  // Sets the call of the events recorded from now on, and returns the previous call.
  std::uint64_t set_call(std::uint64_t ticket) { return std::exchange(call_, ticket); }

 private:
  // Records the message when its handler ends, even if by an exception.
  struct Handling {
    Tap& tap;
    ObservedEvent event;
    MonotonicTime start;
    Handling(Tap& owner, const ObservedEvent& handled, std::uint64_t cause, MonotonicTime sent_at)
        : tap(owner), event(handled), start(owner.tracer_->now()) {
      event.cause = cause;
      event.queued = std::max(Duration(0), start - sent_at);
      event.ok = false;
      tap.cause_ = cause;
    }
    Handling(const Handling&) = delete;
    Handling& operator=(const Handling&) = delete;
    ~Handling() {
      event.duration = tap.tracer_->now() - start;
      tap.record(event);
      tap.cause_ = 0;
    }
  };

  const std::shared_ptr<Tracer> tracer_;
  const Actor actor_;
  std::uint64_t cause_ = 0;
  std::uint64_t call_ = 0;  // 0: no call, or an unknown one
};

}  // namespace cairn

namespace caf {
template <class T>
struct allowed_unsafe_message_type<cairn::Traced<T>> : std::true_type {};
}  // namespace caf
