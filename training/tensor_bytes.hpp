// Gives access to a tensor's memory as bytes, so that one code path moves all types. Internal.
#pragma once

#include <torch/types.h>

namespace cairn::training {

// Returns the bytes of a contiguous tensor. The result keeps the tensor's memory alive.
inline torch::Tensor bytes_of(const torch::Tensor& tensor) {
  return torch::from_blob(
      tensor.data_ptr(), {static_cast<std::int64_t>(tensor.nbytes())}, [tensor](void*) {},
      torch::TensorOptions().dtype(torch::kUInt8).device(tensor.device()));
}

// Rounds `count` elements up to a multiple of 16 bytes, so that data stored after them is 16-byte
// aligned. Devices access aligned data fastest.
inline std::int64_t aligned(std::int64_t count, at::ScalarType type) {
  constexpr std::int64_t kBytes = 16;
  const std::int64_t elements = kBytes / static_cast<std::int64_t>(c10::elementSize(type));
  return (count + elements - 1) / elements * elements;
}

// Views rows of `row` bytes as rows of the widest element type whose size divides `row`. On a
// device, a copy of fewer elements is faster. Rows must start at multiples of the size of that
// type.
inline torch::Tensor as_wide_rows(const torch::Tensor& bytes, std::int64_t row) {
  for (const at::ScalarType wide : {at::kComplexDouble, at::kLong, at::kInt, at::kShort}) {
    if (row % static_cast<std::int64_t>(c10::elementSize(wide)) == 0) return bytes.view(wide);
  }
  return bytes;
}

}  // namespace cairn::training
