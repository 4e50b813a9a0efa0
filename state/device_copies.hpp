// Copies from device memory that run in parallel with the trainer's work. All code that depends on
// whether LibTorch has CUDA is in device_copies.cpp. Internal.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>
#include <torch/types.h>

namespace cairn {

// Returns whether this process has used CUDA. Only then is page-locked memory of use. From LibTorch
// 2 on, does not initialise CUDA, which takes a tenth of a second for each rank of a host.
bool uses_cuda();
// Returns the CUDA devices that this process has used. Do not ask LibTorch about other devices (for
// the current stream, or whether memory is page-locked): it would first create a context there,
// which takes a second and half a gigabyte of device memory.
std::vector<c10::Device> cuda_devices_in_use();

// The current streams of the calling thread, one per device. Other threads that run hooks use them,
// so that the hooks' work is ordered with the caller's. Asks the devices nothing.
class CurrentStreams {
 public:
  static CurrentStreams capture();

  // Makes the streams current for the calling thread while the Scope exists.
  class Scope {
   public:
    explicit Scope(const CurrentStreams& streams) : guard_(streams.streams_) {}

   private:
    c10::MultiStreamGuard guard_;
  };

 private:
  std::vector<c10::Stream> streams_;
};

// The work that the calling thread's current stream of a device has been given so far. Thread-safe.
class GivenWork {
 public:
  // Throws kPrecondition if the stream is being captured into a graph, because the work queued on
  // it does not run.
  explicit GivenWork(const c10::Device& device);
  // Makes `stream`, of the same device, do its later work after this.
  void precede(const c10::Stream& stream) const;

 private:
  c10::Device device_;
  std::shared_ptr<c10::Event> end_;
};

// While it exists, the calling thread's work on the device runs on a stream of its own, so that
// copies of several threads run at once. Does nothing for devices that are not CUDA's.
class OwnStream {
 public:
  // The work comes after what the thread's current stream has been given so far. Throws as
  // GivenWork does.
  explicit OwnStream(const c10::Device& device);
  // The work comes after `given`, which is of the same device.
  OwnStream(const c10::Device& device, const GivenWork& given) { begin(device, given); }
  // Blocks until the work is done. Call it before the results are used.
  void wait();

 private:
  void begin(const c10::Device& device, const GivenWork& given);

  std::optional<c10::StreamGuard> guard_;
};

// Has one side stream per device. A side stream first waits for all work that was queued, when the
// side stream was created, on the current stream of the thread that created it. Not thread-safe.
class SideStreams {
 public:
  // Creates the side stream on first use. Throws as GivenWork does.
  c10::Stream of(const c10::Device& device);
  std::vector<c10::Stream> all() const;
  // Blocks until the side streams have done all their work, then releases them. May be called on
  // any thread.
  void wait();

 private:
  std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, c10::Stream> streams_;
};

// Runs each device's copies on a side stream. The side stream is created when the first copy from
// that device is added. Not thread-safe.
class DeviceCopies {
 public:
  DeviceCopies() = default;
  // Waits for all copies, so that the caller may then free the sources and destinations.
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
