// How much memory a piece of code asks for: decoders must not believe lengths that a few bytes claim, and state machines must not
// take more with every rank than they need.
#pragma once

#include <cstddef>

namespace cairn::testing {

// Counts what the calling thread allocates and frees through `operator new` and `delete` while it lives. One at a time per thread.
class AllocationMeter {
 public:
  AllocationMeter() noexcept;
  ~AllocationMeter();
  AllocationMeter(const AllocationMeter&) = delete;
  AllocationMeter& operator=(const AllocationMeter&) = delete;

  std::size_t bytes() const noexcept;        // in all, what was freed again included
  std::size_t allocations() const noexcept;  // the same, in number
  std::ptrdiff_t held() const noexcept;      // less what was freed; negative: more was freed than allocated
};

}  // namespace cairn::testing
