// A small model with its optimizer on the rank's device, and its state sharded by hand.
#pragma once

#include <cstdint>
#include <memory>

#include <torch/torch.h>

#include <cairn/planning/device_mesh.hpp>
#include <cairn/state/adapters.hpp>
#include <cairn/state/state_dict.hpp>
#include <cairn/tests/support/rank_device.hpp>

namespace cairn::testing {

struct Trained {
  explicit Trained(std::uint64_t seed) {
    torch::manual_seed(seed);
    model = std::make_shared<torch::nn::SequentialImpl>(torch::nn::Linear(8, 16), torch::nn::ReLU(), torch::nn::Linear(16, 32),
                                                        torch::nn::ReLU(), torch::nn::Linear(32, 64), torch::nn::ReLU(),
                                                        torch::nn::Linear(64, 8));
    model->to(rank_device());
    optimizer = std::make_shared<torch::optim::Adam>(model->parameters(), torch::optim::AdamOptions(0.1));
  }
  void train(int steps) {
    torch::manual_seed(0);
    for (int i = 0; i < steps; ++i) {
      optimizer->zero_grad();
      model->forward(here(torch::rand({8, 8}))).sum().backward();
      optimizer->step();
    }
  }
  std::shared_ptr<torch::nn::SequentialImpl> model;
  std::shared_ptr<torch::optim::Adam> optimizer;
};

// Returns the same dict with every tensor sharded on dim 0 over the ranks. The shards share memory
// with the whole tensors.
inline Value sharded_views(const Value& value, int rank, int world_size) {
  if (value.is_tensor() && value.tensor().dim() > 0) {
    const torch::Tensor whole = value.tensor().detach();
    const Extents size(whole.sizes().data(), whole.sizes().size());
    const DeviceMesh mesh({world_size});
    const auto box = local_box(size, mesh, {Shard{0}}, rank);
    return ShardedTensor::from_local(whole.narrow(0, box->offsets[0], box->sizes[0]), size, mesh, {Shard{0}}, rank);
  }
  if (value.is_dict()) {
    Dict dict;
    for (const auto& [key, item] : value.dict()) dict.insert(key, sharded_views(item, rank, world_size));
    return dict;
  }
  return value;
}

}  // namespace cairn::testing
