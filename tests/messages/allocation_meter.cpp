// Replaces the global `operator new` of this binary and of the libraries that it loads.
#include <cairn/tests/messages/allocation_meter.hpp>

#include <cstdlib>
#include <new>

#include <malloc.h>

namespace {

thread_local bool is_counting = false;
thread_local std::size_t counted = 0;
thread_local std::size_t allocated = 0;
thread_local std::ptrdiff_t kept = 0;
thread_local int successes_left = -1;  // -1: all allocations succeed

void free_counted(void* memory) noexcept {
  if (is_counting) kept -= static_cast<std::ptrdiff_t>(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t size) {
  void* const memory = successes_left == 0 ? nullptr : std::malloc(size > 0 ? size : 1);
  if (memory == nullptr) throw std::bad_alloc();
  if (successes_left > 0) --successes_left;
  if (is_counting) {
    counted += size;
    ++allocated;
    kept += static_cast<std::ptrdiff_t>(malloc_usable_size(memory));
  }
  return memory;
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return ::operator new(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* memory) noexcept { free_counted(memory); }
void operator delete(void* memory, std::size_t) noexcept { free_counted(memory); }

namespace cairn::testing {

AllocationMeter::AllocationMeter() noexcept {
  counted = 0;
  allocated = 0;
  kept = 0;
  is_counting = true;
}
AllocationMeter::~AllocationMeter() { is_counting = false; }
std::size_t AllocationMeter::bytes() const noexcept { return counted; }
std::size_t AllocationMeter::allocations() const noexcept { return allocated; }
std::ptrdiff_t AllocationMeter::held() const noexcept { return kept; }

AllocationFault::AllocationFault(int successes) noexcept { successes_left = successes; }
AllocationFault::~AllocationFault() { successes_left = -1; }

}  // namespace cairn::testing
