// Copies from device memory that run in parallel with the trainer's work. The source file of this
// header contains all differences between LibTorch with and without CUDA. Internal.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include <c10/core/Stream.h>
#include <torch/types.h>

namespace cairn {

// Returns whether page-locked host memory is available.
bool has_pinned_memory();
// Returns the CUDA devices that this process has used. Questions to LibTorch about another device
// (its current stream, or whether memory is page-locked) would first create a context. That takes a
// second and half a gigabyte of device memory.
std::vector<c10::Device> cuda_devices_in_use();

// Owns one stream per device. Each stream starts after all work that the creating thread's current
// stream had been given. Not thread-safe.
class SideStreams {
 public:
  // Creates the stream on first use. Throws kPrecondition if the device's current stream is being
  // captured into a graph, because the work given to it has not run.
  c10::Stream of(const c10::Device& device);
  std::vector<c10::Stream> all() const;
  // Blocks until the streams have done all their work, then releases them. May be called on any
  // thread.
  void wait();

 private:
  std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, c10::Stream> streams_;
};

// Runs each device's copies on a stream of its own. That stream first waits for the work that the
// creating thread's current stream had when the first copy was added. Not thread-safe.
class DeviceCopies {
 public:
  DeviceCopies() = default;
  // Waits, so that the caller may then free the sources and destinations.
  ~DeviceCopies();
  DeviceCopies(const DeviceCopies&) = delete;
  DeviceCopies& operator=(const DeviceCopies&) = delete;

  // Adds a copy of `from` to `to`. Throws as `SideStreams::of` does.
  void add(const torch::Tensor& from, torch::Tensor& to);
  // Copies `parts`, byte tensors on one device, into `to`. `gaps[i]` unused bytes follow part i. If
  // the device has enough memory, the parts are first gathered on the device, because many small
  // copies take longer than one large copy.
  void add_joined(const std::vector<torch::Tensor>& parts, const std::vector<std::int64_t>& gaps, torch::Tensor& to);
  // Blocks until all copies are done. May be called on any thread.
  void wait();

 private:
  SideStreams streams_;
};

}  // namespace cairn
