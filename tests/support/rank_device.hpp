// The device on which a rank of a test trains: host memory, or a CUDA device if
// CAIRN_TEST_DEVICE=cuda. Each rank has a CUDA device of its own if there are enough.
#pragma once

#include <cstdlib>
#include <string>
#include <string_view>

#include <torch/torch.h>

#include <cairn/state/state_dict.hpp>

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

// The calling thread's device. Until the thread assigns another, it is the device of the rank that
// cairn-launch started as this process, otherwise rank 0's.
inline at::Device& rank_device() {
  const char* const own = ranks_use_cuda() ? std::getenv("LOCAL_RANK") : nullptr;
  thread_local at::Device device = device_of_rank(own == nullptr ? 0 : std::stoi(own));
  return device;
}

inline torch::Tensor here(const torch::Tensor& tensor) { return tensor.to(rank_device()); }

template <class Module>
Module here(Module module) {
  module->to(rank_device());
  return module;
}

// Returns whether the tensor, or every tensor in the value, is on this rank's device: a CUDA device
// if CAIRN_TEST_DEVICE=cuda.
inline bool is_here(const torch::Tensor& tensor) {
  return tensor.is_cuda() == ranks_use_cuda() && tensor.device() == rank_device();
}

inline bool is_here(const Value& value) {
  if (value.is_tensor()) return is_here(value.tensor());
  if (value.is_stateful()) return is_here(value.stateful()->state_dict());
  bool all = true;
  if (value.is_sharded()) {
    for (const LocalShard& shard : value.sharded().local_shards()) all = all && is_here(shard.tensor);
  } else if (value.is_dict()) {
    for (const auto& [key, inner] : value.dict()) all = all && is_here(inner);
  } else if (value.is_list()) {
    for (const Value& inner : value.list()) all = all && is_here(inner);
  }
  return all;
}

}  // namespace cairn::testing
