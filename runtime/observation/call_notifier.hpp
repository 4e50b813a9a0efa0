// Tells the listeners of one rank about its saves and loads, from the events that every observer
// gets (base/observer.hpp). Agreements are internal to Cairn and are not reported. Internal.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include <cairn/base/observer.hpp>
#include <cairn/runtime/observation/call_listener.hpp>

namespace cairn {

class CallNotifier final : public Observer {
 public:
  // Starts the thread that calls `listeners`. Throws kUnavailable if the thread cannot be started.
  // `next` also gets every event, on the thread that calls `on_event`; may be null.
  CallNotifier(int rank, std::vector<std::shared_ptr<CallListener>> listeners, std::shared_ptr<Observer> next);
  ~CallNotifier() override;
  CallNotifier(const CallNotifier&) = delete;
  CallNotifier& operator=(const CallNotifier&) = delete;

  void on_event(const ObservedEvent& event) noexcept override;

  // Waits until the listeners have received every event so far, at most until the deadline. Returns
  // whether they have. Returns true at once on the listeners' own thread.
  bool flush(std::chrono::milliseconds deadline);
  // Accepts no more events, and waits as `flush` does. Reports the end of calls that are still
  // running. Detaches the thread if a listener has not returned by the deadline.
  void close(std::chrono::milliseconds deadline) noexcept;

 private:
  struct Shared;
  const std::shared_ptr<Observer> next_;
  const std::shared_ptr<Shared> shared_;
};

}  // namespace cairn
