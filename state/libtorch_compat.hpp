// Hides the differences between the LibTorch versions that Cairn supports (1.13 and 2.x). Nothing
// else in `state` tests the version.
#pragma once

#include <sstream>
#include <string>
#include <type_traits>
#include <utility>

#include <torch/optim/optimizer.h>
#include <torch/version.h>

#define CAIRN_LIBTORCH_AT_LEAST(major, minor) \
  (TORCH_VERSION_MAJOR > (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

// Whether LibTorch has these types, in this order: float8_e4m3fn and float8_e5m2; their `fnuz`
// variants; uint16, uint32 and uint64; float8_e8m0fnu; float4_e2m1fn_x2.
#define CAIRN_LIBTORCH_HAS_FLOAT8 CAIRN_LIBTORCH_AT_LEAST(2, 1)
#define CAIRN_LIBTORCH_HAS_FLOAT8_FNUZ CAIRN_LIBTORCH_AT_LEAST(2, 2)
#define CAIRN_LIBTORCH_HAS_WIDE_UNSIGNED CAIRN_LIBTORCH_AT_LEAST(2, 3)
#define CAIRN_LIBTORCH_HAS_FLOAT8_E8M0 CAIRN_LIBTORCH_AT_LEAST(2, 7)
#define CAIRN_LIBTORCH_HAS_FLOAT4 CAIRN_LIBTORCH_AT_LEAST(2, 8)

namespace cairn {

using OptimizerStateMap = std::remove_reference_t<decltype(std::declval<torch::optim::Optimizer&>().state())>;
using OptimizerStateKey = OptimizerStateMap::key_type;

// Returns the key of `parameter` in Optimizer::state(): the address of its TensorImpl, as text in
// LibTorch 1.x, as a pointer in 2.x.
template <class Key = OptimizerStateKey>
Key optimizer_state_key(const torch::Tensor& parameter) {
  if constexpr (std::is_same_v<Key, std::string>) {
    std::ostringstream text;
    text << parameter.unsafeGetTensorImpl();
    return text.str();
  } else {
    return parameter.unsafeGetTensorImpl();
  }
}

}  // namespace cairn
