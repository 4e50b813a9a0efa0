// For tests of the stacks of threads.
#pragma once

#include <dlfcn.h>
#include <link.h>

#include <cstdint>
#include <string>

#include <cairn/base/running_work.hpp>
#include <cairn/tests/support/plain.hpp>

namespace cairn::testing {

// Returns whether this build can take stacks. If not, prints why.
inline bool takes_stacks() {
  const std::string fault = install_stack_signal(0);
  if (!fault.empty()) MESSAGE("not run: " << fault);
  return fault.empty();
}

// Returns whether an instruction lies at the beginning of `function`, which is short. `offset` is
// counted from where this binary was loaded.
template <class... Arguments>
bool is_frame_in(void (*function)(Arguments...), std::uint64_t offset) {
  Dl_info info{};
  link_map* module = nullptr;
  void* const address = reinterpret_cast<void*>(function);
  if (::dladdr1(address, &info, reinterpret_cast<void**>(&module), RTLD_DL_LINKMAP) == 0) return false;
  const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(function) - module->l_addr;
  return offset >= begin && offset < begin + 128;
}

}  // namespace cairn::testing
