// The device that a rank of a test trains on: host memory, or with CAIRN_TEST_DEVICE=cuda a CUDA device, of its own where there are
// enough.
#pragma once

#include <cstdlib>
#include <string>
#include <string_view>

#include <torch/torch.h>

namespace cairn::testing {

inline bool ranks_use_cuda() {
  const char* const wanted = std::getenv("CAIRN_TEST_DEVICE");
  return wanted != nullptr && std::string_view(wanted) == "cuda";
}

// Where cairn-launch has started more ranks than there are devices, ranks share them. NCCL links two ranks of one device only if it takes
// them for ranks of two hosts, so each gets a host's name of its own before its first group.
inline bool ranks_share_devices(int devices) {
  const char *const started = std::getenv("LOCAL_WORLD_SIZE"), *const own = std::getenv("LOCAL_RANK");
  if (started == nullptr || own == nullptr || std::stoi(started) <= devices) return false;
  setenv("NCCL_HOSTID", (std::string("rank") + own).c_str(), /*overwrite=*/1);
  return true;
}

inline at::Device device_of_rank(int rank) {
  if (!ranks_use_cuda()) return at::kCPU;
  static const int devices = static_cast<int>(torch::cuda::device_count());
  static const bool shared = ranks_share_devices(devices);
  return at::Device(at::kCUDA, static_cast<at::DeviceIndex>(shared ? rank % devices : rank));
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
