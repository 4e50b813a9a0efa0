// Copies out of devices' memory that run beside the trainer's work. All that differs between a LibTorch with and without CUDA is in the
// source file of this header. Internal.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include <c10/core/Stream.h>
#include <torch/types.h>

namespace cairn {

// Whether page-locked host memory is to be had.
bool has_pinned_memory();

// Each device's copies run on a stream of their own, after what the creating thread's current stream there was given before the first of
// them. Not thread-safe.
class DeviceCopies {
 public:
  DeviceCopies() = default;
  // Waits: what is copied from and to may go then.
  ~DeviceCopies();
  DeviceCopies(const DeviceCopies&) = delete;
  DeviceCopies& operator=(const DeviceCopies&) = delete;

  // Throws kPrecondition if the current stream of the device is being captured into a graph: what it was given has not run then.
  void add(const torch::Tensor& from, torch::Tensor& to);
  // On any thread: blocks until all of them are done.
  void wait();

 private:
  c10::Stream stream_of(const c10::Device& device);
  std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, c10::Stream> streams_;
};

}  // namespace cairn
