// The device on which a rank of a test trains: host memory, or a CUDA device if
// CAIRN_TEST_DEVICE=cuda. Each rank has a CUDA device of its own if there are enough.
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

// Returns whether ranks share devices: cairn-launch has started more ranks than there are devices.
// NCCL connects two ranks on one device only if they appear to be on different hosts, so each rank
// gets its own NCCL_HOSTID before its first group.
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

// The calling thread's device. It is rank 0's device until the thread assigns another.
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
