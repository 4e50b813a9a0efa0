// Empties the memory store of a name before and after a test.
#pragma once

#include <string>
#include <utility>

#include <cairn/storage/stores/memory_store.hpp>

namespace cairn::testing {

struct EmptiedMemory {
  explicit EmptiedMemory(std::string of) : name(std::move(of)) { forget_memory(name); }
  ~EmptiedMemory() { forget_memory(name); }
  EmptiedMemory(const EmptiedMemory&) = delete;
  EmptiedMemory& operator=(const EmptiedMemory&) = delete;
  const std::string name;
};

}  // namespace cairn::testing
