// Notices collectives that a device does not finish: the calls that began them have returned long before. Internal.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include <c10/core/Device.h>

namespace cairn::training {

class DeviceWatch {
 public:
  // `late` is called once, on the watch's thread, with the first action that was not over in time. It may destroy the watch.
  DeviceWatch(std::chrono::milliseconds timeout, std::function<void(const std::string& action)> late);
  ~DeviceWatch();
  DeviceWatch(const DeviceWatch&) = delete;
  DeviceWatch& operator=(const DeviceWatch&) = delete;

  // What is on the current stream of `device` by now is to be over when the timeout has passed.
  void expect(std::string action, c10::Device device);

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace cairn::training
