// Tells the listeners of one rank about its saves and loads, from the events that every observer gets (base/observer.hpp).
// Agreements are internal to Cairn and are not reported. Internal.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include <cairn/base/observer.hpp>
#include <cairn/runtime/call_listener.hpp>

namespace cairn {

class CallNotifier final : public Observer {
 public:
  // Starts the thread on which `listeners` are called. Throws kUnavailable where none is to be had. `next`: gets every event as well; may be null.
  CallNotifier(int rank, std::vector<std::shared_ptr<CallListener>> listeners, std::shared_ptr<Observer> next);
  ~CallNotifier() override;
  CallNotifier(const CallNotifier&) = delete;
  CallNotifier& operator=(const CallNotifier&) = delete;

  void on_event(const ObservedEvent& event) noexcept override;

  // Until the listeners have been told all that has happened, or the deadline. Returns whether they have; true at once on the listeners' own thread.
  bool flush(std::chrono::milliseconds deadline);
  // The same; then nothing more is told. A listener that has not returned is left to itself.
  void close(std::chrono::milliseconds deadline) noexcept;

 private:
  struct Shared;
  const std::shared_ptr<Observer> next_;
  const std::shared_ptr<Shared> shared_;
};

}  // namespace cairn
