// The core does not know LibTorch, but asks it for ranges of its profiler and for page-locked
// memory for its devices. state/ supplies the functions. Internal.
#pragma once

#include <cstdint>

namespace cairn {

// Thread-safe functions that throw nothing.
struct DeviceFunctions {
  // Begins the range `cairn::<name>` of the profiler. Returns null if nothing observes ranges on
  // this thread. `end_range` must be called on the same thread.
  void* (*begin_range)(const char* name) noexcept;
  void (*end_range)(void* range) noexcept;
  // Page-locks memory for the devices of this process, so that copies from and to them need no
  // thread. Takes up to half a second for each GiB. Returns false if it cannot. Unlock the memory
  // before it is freed.
  bool (*lock_memory)(char* memory, std::uint64_t bytes) noexcept;
  void (*unlock_memory)(char* memory) noexcept;
  // Returns whether this process has used a device that copies faster from page-locked memory.
  bool (*has_devices)() noexcept;
};

// Sets the functions for the rest of the process. Until then nothing observes ranges, and no memory
// can be page-locked.
void set_device_functions(const DeviceFunctions& functions) noexcept;
DeviceFunctions device_functions() noexcept;

}  // namespace cairn
