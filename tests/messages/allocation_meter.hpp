// Measures the memory that a piece of code allocates. Decoders must not trust the lengths that a
// few bytes claim, and state machines must not allocate more per rank than they need.
#pragma once

#include <cstddef>

namespace cairn::testing {

// Counts the calling thread's allocations and frees through `operator new` and `delete` during its
// lifetime. At most one per thread at a time.
class AllocationMeter {
 public:
  AllocationMeter() noexcept;
  ~AllocationMeter();
  AllocationMeter(const AllocationMeter&) = delete;
  AllocationMeter& operator=(const AllocationMeter&) = delete;

  std::size_t bytes() const noexcept;        // bytes allocated, freed ones included
  std::size_t allocations() const noexcept;  // number of allocations, freed ones included
  std::ptrdiff_t held() const noexcept;      // bytes allocated minus bytes freed; may be negative
};

// Lets the calling thread's allocations through `operator new` fail during its lifetime, after
// `successes` of them. At most one per thread at a time.
class AllocationFault {
 public:
  explicit AllocationFault(int successes) noexcept;
  ~AllocationFault();
  AllocationFault(const AllocationFault&) = delete;
  AllocationFault& operator=(const AllocationFault&) = delete;
};

}  // namespace cairn::testing
