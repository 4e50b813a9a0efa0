#include <cairn/base/device_functions.hpp>

#include <atomic>

namespace cairn {
namespace {

// Used in processes without LibTorch, such as the command `cairn`.
constexpr DeviceFunctions kNone{
    [](const char*) noexcept -> void* { return nullptr; },
    [](void*) noexcept {},
    [](char*, std::uint64_t) noexcept { return false; },
    [](char*) noexcept {},
    []() noexcept { return false; },
};

std::atomic<const DeviceFunctions*> functions_in_use{&kNone};

}  // namespace

void set_device_functions(const DeviceFunctions& functions) noexcept {
  static const DeviceFunctions kept = functions;
  functions_in_use = &kept;
}

DeviceFunctions device_functions() noexcept { return *functions_in_use.load(); }

}  // namespace cairn
