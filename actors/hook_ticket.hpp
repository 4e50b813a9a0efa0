// The promise that a hook that was asked for is heard of again, whatever happens to the actors and executors in between.
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

// The plan, plans or results that a hook was given: it may change or empty them.
template <class T>
T take(protocol::HookValue& argument) {
  return std::move(*std::get<std::shared_ptr<T>>(argument));
}

// Posts exactly one HookReport to the supervisor: by `succeed` or `fail`, or, when the last holder drops it, a failure that says
// so. Not thread-safe: handed from one thread to the next.
class HookTicket {
 public:
  // `asker`: whose tracer it takes, and what made it ask. `coordinator`: 0 when the rank's own machine asked, else which life of the
  // coordinator actor did.
  HookTicket(std::shared_ptr<Inbox> supervisor, const Tap& asker, int rank, std::string checkpointer, std::uint64_t coordinator,
             const protocol::RunHook& hook, std::shared_ptr<Injector> injector = nullptr);
  ~HookTicket();
  HookTicket(const HookTicket&) = delete;
  HookTicket& operator=(const HookTicket&) = delete;

  // For the trace: how much data the hook moves.
  void set_bytes(std::uint64_t bytes) { bytes_ = bytes; }
  // The hook begins: its duration counts from here. Throws what an injector has for it, as if the hook had thrown.
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
