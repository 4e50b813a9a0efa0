// The memory of a tensor as bytes: what can be moved without asking for the type. Internal.
#pragma once

#include <torch/types.h>

namespace cairn::training {

// Of a contiguous tensor. Keeps its memory alive.
inline torch::Tensor bytes_of(const torch::Tensor& tensor) {
  return torch::from_blob(
      tensor.data_ptr(), {static_cast<std::int64_t>(tensor.nbytes())}, [tensor](void*) {},
      torch::TensorOptions().dtype(torch::kUInt8).device(tensor.device()));
}

// `count` rounded up to a number of elements of `type` behind which memory begins as devices read and write it best.
inline std::int64_t aligned(std::int64_t count, at::ScalarType type) {
  constexpr std::int64_t kBytes = 16;
  const std::int64_t elements = kBytes / static_cast<std::int64_t>(c10::elementSize(type));
  return (count + elements - 1) / elements * elements;
}

// Bytes in rows of `row`, as rows of the widest elements that divide them: copies cost devices by the element. The rows begin at
// multiples of 16.
inline torch::Tensor as_wide_rows(const torch::Tensor& bytes, std::int64_t row) {
  for (const at::ScalarType wide : {at::kComplexDouble, at::kLong, at::kInt, at::kShort}) {
    if (row % static_cast<std::int64_t>(c10::elementSize(wide)) == 0) return bytes.view(wide);
  }
  return bytes;
}

}  // namespace cairn::training
