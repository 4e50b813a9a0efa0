// How much memory a piece of code asks for: decoders must not believe lengths that a few bytes claim.
#pragma once

#include <cstddef>

namespace cairn::testing {

// Counts what the calling thread allocates through `operator new` while it lives. One at a time per thread.
class AllocationMeter {
 public:
  AllocationMeter() noexcept;
  ~AllocationMeter();
  AllocationMeter(const AllocationMeter&) = delete;
  AllocationMeter& operator=(const AllocationMeter&) = delete;

  std::size_t bytes() const noexcept;  // in all, what was freed again included
};

}  // namespace cairn::testing
