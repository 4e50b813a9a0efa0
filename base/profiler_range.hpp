// Marks a part of a save or load as a range of LibTorch's profiler. PyTorch's profiler shows these
// ranges, and can pass them to Nsight as NVTX ranges. Internal.
#pragma once

#include <utility>

#include <cairn/base/device_functions.hpp>

namespace cairn {

// The constructor begins the range `cairn::<name>`. The destructor ends it and must run on the same
// thread. Ranges of a thread must nest. Costs some nanoseconds if nothing observes
// ranges on this thread. Throws nothing: if memory runs out, there is no range.
class ProfilerRange {
 public:
  explicit ProfilerRange(const char* name) noexcept : range_(device_functions().begin_range(name)) {}
  ~ProfilerRange() {
    if (range_) device_functions().end_range(range_);
  }
  ProfilerRange(ProfilerRange&& other) noexcept : range_(std::exchange(other.range_, nullptr)) {}
  ProfilerRange& operator=(ProfilerRange&&) = delete;

 private:
  void* range_;  // null: there is no range
};

}  // namespace cairn
