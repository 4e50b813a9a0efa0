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

}  // namespace cairn::training
