// Copies out of devices' memory that run beside the trainer's work. All that differs between a LibTorch with and without CUDA is in the
// source file of this header. Internal.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include <c10/core/Stream.h>
#include <torch/types.h>

namespace cairn {

// Whether page-locked host memory is to be had.
bool has_pinned_memory();
// Returns the CUDA devices that this process has used. On any other device, asking LibTorch for the current stream, or whether
// memory is page-locked, creates a context first: that takes a second, and half a gigabyte of device memory.
std::vector<c10::Device> cuda_devices_in_use();

// A stream of its own for each device, after all that the creating thread's current stream there was given before. Not thread-safe.
class SideStreams {
 public:
  // Made when it is first asked for. Throws kPrecondition if the current stream of the device is being captured into a graph: what it was
  // given has not run then.
  c10::Stream of(const c10::Device& device);
  std::vector<c10::Stream> all() const;
  // On any thread: blocks until they have done all that they were given; then forgets them.
  void wait();

 private:
  std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, c10::Stream> streams_;
};

// Each device's copies run on a stream of their own, after what the creating thread's current stream there was given before the first of
// them. Not thread-safe.
class DeviceCopies {
 public:
  DeviceCopies() = default;
  // Waits: what is copied from and to may go then.
  ~DeviceCopies();
  DeviceCopies(const DeviceCopies&) = delete;
  DeviceCopies& operator=(const DeviceCopies&) = delete;

  // Throws as `SideStreams::of`.
  void add(const torch::Tensor& from, torch::Tensor& to);
  // `parts`, bytes of one device each, become `to`, one after the other with `gaps` unused bytes behind each: gathered on the device first,
  // if it has memory for that, as many small copies take longer than a large one.
  void add_joined(const std::vector<torch::Tensor>& parts, const std::vector<std::int64_t>& gaps, torch::Tensor& to);
  // On any thread: blocks until all of them are done.
  void wait();

 private:
  SideStreams streams_;
};

}  // namespace cairn
