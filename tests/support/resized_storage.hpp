// Tensors whose storage was freed or shrunk after they were made, as FSDP does with parameters.
#pragma once

#include <cstddef>

#include <ATen/native/Resize.h>
#include <torch/torch.h>

namespace cairn::testing {

// `tensor` must be on the host.
inline torch::Tensor with_storage_of(torch::Tensor tensor, std::size_t bytes) {
  at::native::resize_bytes_cpu(tensor.storage().unsafeGetStorageImpl(), bytes);
  return tensor;
}

}  // namespace cairn::testing
