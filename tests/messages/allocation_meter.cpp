// Replaces the global `operator new` of this binary and of the libraries it loads.
#include <cairn/tests/messages/allocation_meter.hpp>

#include <cstdlib>
#include <new>

namespace {

thread_local bool is_counting = false;
thread_local std::size_t counted = 0;

}  // namespace

void* operator new(std::size_t size) {
  if (is_counting) counted += size;
  if (void* memory = std::malloc(size > 0 ? size : 1)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace cairn::testing {

AllocationMeter::AllocationMeter() noexcept {
  counted = 0;
  is_counting = true;
}
AllocationMeter::~AllocationMeter() { is_counting = false; }
std::size_t AllocationMeter::bytes() const noexcept { return counted; }

}  // namespace cairn::testing
