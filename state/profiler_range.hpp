// Marks a part of a save or load as a range of LibTorch's profiler (at::RecordFunction). PyTorch's
// profiler shows these ranges, and can pass them to Nsight as NVTX ranges. Internal.
#pragma once

#include <memory>

namespace at {
struct RecordFunction;
}

namespace cairn {

// The constructor begins the range `cairn::<name>`. The destructor ends it and must run on the same
// thread. Ranges of a thread must nest. Costs some nanoseconds if nothing observes
// ranges on this thread. Throws nothing: if memory runs out, there is no range.
class ProfilerRange {
 public:
  explicit ProfilerRange(const char* name) noexcept;
  ~ProfilerRange();
  ProfilerRange(ProfilerRange&&) noexcept;
  ProfilerRange& operator=(ProfilerRange&&) = delete;

 private:
  std::unique_ptr<at::RecordFunction> range_;  // null: there is no range
};

}  // namespace cairn
