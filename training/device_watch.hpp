// Detects collectives that a device does not finish in time, after the calls that started them have
// returned. Internal.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include <c10/core/Device.h>

namespace cairn::training {

class DeviceWatch {
 public:
  // Starts the watch's thread. That thread calls `late` at most once, with the first action that
  // was not finished in time. `late` may destroy the watch.
  DeviceWatch(std::chrono::milliseconds timeout, std::function<void(const std::string& action)> late);
  ~DeviceWatch();
  DeviceWatch(const DeviceWatch&) = delete;
  DeviceWatch& operator=(const DeviceWatch&) = delete;

  // Expects the work queued so far on the current stream of `device` to finish within the timeout.
  void expect(std::string action, c10::Device device);

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

// Waits on the host for the work queued so far on the current stream of `device`. Returns false if
// the device has not finished it by `until`.
bool finishes_by(std::chrono::steady_clock::time_point until, c10::Device device);

}  // namespace cairn::training
