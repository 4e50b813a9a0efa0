// The device that a rank of a test trains on: host memory, or with CAIRN_TEST_DEVICE=cuda a CUDA device of its own.
#pragma once

#include <cstdlib>
#include <string_view>

#include <torch/torch.h>

namespace cairn::testing {

inline bool ranks_use_cuda() {
  const char* const wanted = std::getenv("CAIRN_TEST_DEVICE");
  return wanted != nullptr && std::string_view(wanted) == "cuda";
}

inline at::Device device_of_rank(int rank) {
  return ranks_use_cuda() ? at::Device(at::kCUDA, static_cast<at::DeviceIndex>(rank)) : at::Device(at::kCPU);
}

// Of the calling thread, rank 0's unless it said otherwise.
inline at::Device& rank_device() {
  thread_local at::Device device = device_of_rank(0);
  return device;
}

inline torch::Tensor here(const torch::Tensor& tensor) { return tensor.to(rank_device()); }

template <class Module>
Module here(Module module) {
  module->to(rank_device());
  return module;
}

}  // namespace cairn::testing
