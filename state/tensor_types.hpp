// Between LibTorch's tensors and the plain records of `planning`.
#pragma once

#include <optional>
#include <string>

#include <torch/types.h>

#include <cairn/base/error.hpp>
#include <cairn/planning/box.hpp>
#include <cairn/planning/dtype.hpp>

namespace cairn {

// Nothing for types that no checkpoint can hold (quantized ones).
std::optional<DType> dtype_of(at::ScalarType type) noexcept;
// Nothing for types that the LibTorch in use cannot hold (float8, uint16 and such in 1.13).
std::optional<at::ScalarType> scalar_type_of(DType dtype) noexcept;

inline Extents extents_of(at::IntArrayRef sizes) { return Extents(sizes.data(), sizes.size()); }
inline at::IntArrayRef array_of(const Extents& extents) { return {extents.begin(), extents.size()}; }

// Why `tensor` cannot be saved or loaded ("is sparse"); empty if it can. Strided tensors with memory and a dtype that DType knows
// can.
std::string why_not_storable(const torch::Tensor& tensor);

// The part of `tensor` that begins at `offsets` and has `sizes`: a view without autograd history. Throws kInvalidArgument if it
// does not lie within.
torch::Tensor part_of(const torch::Tensor& tensor, const Extents& offsets, const Extents& sizes);

// LibTorch's exceptions as Cairn's: runs `work`, and turns what LibTorch throws into an Error (kUnavailable when memory ran out,
// kPrecondition otherwise) that begins with `action` ("copy 12 bytes into \"w\"").
template <class Work>
auto with_torch(const std::string& action, Work&& work) -> decltype(work());

[[noreturn]] void throw_torch_error(const std::string& action, const c10::Error& error);

template <class Work>
auto with_torch(const std::string& action, Work&& work) -> decltype(work()) {
  try {
    return work();
  } catch (const c10::Error& error) {
    throw_torch_error(action, error);
  }
}

}  // namespace cairn
