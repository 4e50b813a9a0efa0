// Guarantees that every requested hook is reported back, even if an actor or executor in between
// dies.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include <cairn/actors/call_context.hpp>
#include <cairn/actors/local_messages.hpp>
#include <cairn/actors/traced.hpp>
#include <cairn/base/injection.hpp>

namespace cairn {

// Moves the plan, plans or results out of a hook's argument, so that the hook may change them.
template <class T>
T take(protocol::HookValue& argument) {
  return std::move(*std::get<std::shared_ptr<T>>(argument));
}

// Posts exactly one HookReport to the supervisor: from `succeed` or `fail`, or a failure when the
// last holder drops the ticket. Not thread-safe; it is passed from one thread to the next.
class HookTicket {
 public:
  // `asker` supplies the tracer and the cause of the hook's trace events. `coordinator` is 0 if the
  // rank's own machine asked for the hook, otherwise the life of the coordinator actor that did.
  HookTicket(std::shared_ptr<Inbox> supervisor, const Tap& asker, int rank, std::string checkpointer, std::uint64_t coordinator,
             const protocol::RunHook& hook, std::shared_ptr<Injector> injector = nullptr);
  ~HookTicket();
  HookTicket(const HookTicket&) = delete;
  HookTicket& operator=(const HookTicket&) = delete;

  // Sets the amount of data that the hook moves, for the trace.
  void set_bytes(std::uint64_t bytes) { bytes_ = bytes; }
  // Marks the start of the hook, from which its duration counts. Throws injected faults as if the
  // hook had thrown them.
  void start();
  void succeed(protocol::HookValue value);
  void fail(std::exception_ptr exception);

 private:
  ObservedEvent event_of(EventKind kind) const;
  std::uint64_t record(bool ok, std::string_view failure = {});
  void report(std::variant<protocol::HookValue, Failure> result);

  const std::shared_ptr<Inbox> supervisor_;
  Tap tap_;
  const int rank_;
  const std::string checkpointer_;
  const std::uint64_t coordinator_;
  const protocol::Hook hook_;
  const protocol::Operation operation_;
  const Phase phase_;
  const std::uint64_t sequence_;
  const std::uint64_t counter_;
  const std::shared_ptr<Injector> injector_;  // null: nothing is injected
  MonotonicTime started_;
  std::uint64_t bytes_ = 0;
  bool reported_ = false;
};

}  // namespace cairn
