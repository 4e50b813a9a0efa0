// Element types of tensors, with PyTorch's names. Does not depend on LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace cairn {

enum class DType : std::uint8_t {
  kUnknown = 0,  // a type that Cairn does not know; occurs only in metadata, for tensors that Cairn cannot read
  kFloat32 = 1, kFloat64, kFloat16, kBFloat16,
  kInt8, kUInt8, kInt16, kInt32, kInt64,
  kBool,
  kComplex32, kComplex64, kComplex128,
  // The types below occur in checkpoints of newer PyTorch versions. LibTorch 1.13 has no tensors of
  // these types.
  kUInt16, kUInt32, kUInt64,
  kFloat8E4M3Fn, kFloat8E5M2, kFloat8E4M3FnUz, kFloat8E5M2FnUz,
  kFloat8E8M0Fnu,
  kFloat4E2M1FnX2,  // an element is a byte that holds two numbers, the first in its low bits
};
inline constexpr std::uint8_t kDTypeCount = 22;  // known types have the values 1 to kDTypeCount

std::size_t element_size(DType dtype) noexcept;        // bytes; 0 for kUnknown and invalid values
const char* to_string(DType dtype) noexcept;           // "float32", as in torch.float32
std::optional<DType> dtype_from_name(std::string_view name) noexcept;
// Returns whether `name` has the form of PyTorch's names of element types: "bool", or lower-case
// letters, then a digit, then any lower-case letters, digits and underscores.
bool is_dtype_name(std::string_view name) noexcept;

}  // namespace cairn
