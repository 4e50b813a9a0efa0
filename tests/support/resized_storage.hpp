// Tensors whose storage was freed or shrunk after they were made, as FSDP does with parameters.
#pragma once

#include <cstddef>
#include <cstring>
#include <utility>

#include <torch/torch.h>

namespace cairn::testing {

// `tensor` must be on the host, and its storage at least `bytes` long.
inline torch::Tensor with_storage_of(torch::Tensor tensor, std::size_t bytes) {
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  at::DataPtr data = c10::GetAllocator(at::kCPU)->allocate(bytes);
  if (bytes > 0) std::memcpy(data.get(), tensor.storage().data_ptr().get(), bytes);
  storage->set_data_ptr(std::move(data));
  storage->set_nbytes(bytes);
  return tensor;
}

}  // namespace cairn::testing
