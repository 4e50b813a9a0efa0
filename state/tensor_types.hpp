// Converts between LibTorch's tensors and the structs of `planning`, which do not use LibTorch.
#pragma once

#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/types.h>

#include <cairn/base/error.hpp>
#include <cairn/planning/box.hpp>
#include <cairn/planning/dtype.hpp>

namespace cairn {

// Returns the DType of a LibTorch type; nothing if it cannot be stored (quantized types).
std::optional<DType> dtype_of(at::ScalarType type) noexcept;
// Returns the LibTorch type of a DType; nothing if LibTorch lacks it (float8 and uint16 in 1.13).
std::optional<at::ScalarType> scalar_type_of(DType dtype) noexcept;

// Returns the LibTorch type in which elements are held: scalar_type_of(dtype) or, if LibTorch lacks
// that type, the integer type of the same width (uint8, int16, int32, int64). Returns nothing for
// kUnknown.
std::optional<at::ScalarType> carrier_type_of(DType dtype) noexcept;

// Returns a torch.dtype as a plain value: an IValue enum with PyTorch's name of the type, such as
// "float16". `name` must satisfy is_dtype_name; LibTorch need not have the type. Equal names give
// equal values.
c10::IValue dtype_value(const std::string& name);
// Returns the name in a value that `dtype_value` made; nothing for other values.
std::optional<std::string> dtype_name_in(const c10::IValue& value);

// Returns a torch.Size as a plain value: a tuple that `is_torch_size` tells from others.
c10::IValue torch_size_value(std::vector<c10::IValue> sizes);
bool is_torch_size(const c10::IValue& value);

inline Extents extents_of(at::IntArrayRef sizes) { return Extents(sizes.data(), sizes.size()); }
inline at::IntArrayRef array_of(const Extents& extents) { return {extents.begin(), extents.size()}; }

// Returns why `tensor` cannot be saved or loaded ("is sparse"), or an empty string if it can. A
// tensor can be saved if it is strided, has memory for all its elements, and has a type that DType
// has.
std::string why_not_storable(const torch::Tensor& tensor);
// Does the same, but accepts a tensor whose storage is currently freed or too small.
std::string why_not_dense(const torch::Tensor& tensor);

// Returns the part of `tensor` that begins at `offsets` and has size `sizes`, as a view without
// autograd history. Throws kInvalidArgument if the part does not lie within the tensor.
torch::Tensor part_of(const torch::Tensor& tensor, const Extents& offsets, const Extents& sizes);

// A whole tensor, or a part of one.
struct TensorPart {
  torch::Tensor tensor;
  Box box;       // within the whole tensor
  Extents size;  // of the whole tensor
  // Returns whether both are the same part, and this one has its memory.
  bool can_replace(const TensorPart& other) const;
};
class Value;
// Returns the tensor in a value of a state dict, or the part if it is the only one of this rank;
// nothing for other values. `describe_part` describes any value: "a tensor of size [3, 4]".
std::optional<TensorPart> part_in(const Value& value);
std::string describe_part(const Value& value);

// Runs `work` and converts LibTorch's exceptions to Error: kUnavailable if memory ran out,
// otherwise kPrecondition. The text begins with `action` ("copy 12 bytes into \"w\""), which may be
// a function that returns the text.
template <class Action, class Work>
auto with_torch(const Action& action, Work&& work) -> decltype(work());

[[noreturn]] void throw_torch_error(const std::string& action, const c10::Error& error);

template <class Action, class Work>
auto with_torch(const Action& action, Work&& work) -> decltype(work()) {
  try {
    return work();
  } catch (const c10::Error& error) {
    if constexpr (std::is_invocable_v<const Action&>)
      throw_torch_error(action(), error);
    else
      throw_torch_error(action, error);
  }
}

}  // namespace cairn
