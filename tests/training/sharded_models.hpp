// Models for tests that compare plain and sharded training.
#pragma once

#include <vector>

#include <torch/torch.h>

#include <cairn/tests/support/on_ranks.hpp>
#include <cairn/training/fully_shard.hpp>

namespace cairn::testing {

// Two linear layers with a Sequential between them.
struct UnitImpl : torch::nn::Module {
  explicit UnitImpl(std::int64_t width)
      : l1(width, width), seq(torch::nn::ReLU(), torch::nn::Linear(width, width), torch::nn::ReLU()), l2(width, width) {
    register_module("l1", l1);
    register_module("seq", seq);
    register_module("l2", l2);
  }
  torch::Tensor forward(const torch::Tensor& x) { return l2(seq(l1(x))); }
  torch::nn::Linear l1;
  training::Hooked<torch::nn::Sequential> seq;
  torch::nn::Linear l2;
};
TORCH_MODULE(Unit);

struct CompositeImpl : torch::nn::Module {
  explicit CompositeImpl(std::int64_t width) : l1(width, width), u1(width), u2(width), l2(width, width) {
    register_module("l1", l1);
    register_module("u1", u1);
    register_module("u2", u2);
    register_module("l2", l2);
  }
  torch::Tensor forward(const torch::Tensor& x) { return l2(u2(u1(l1(x)))); }
  torch::nn::Linear l1;
  Unit u1, u2;
  torch::nn::Linear l2;
};
TORCH_MODULE(Composite);

// A model with a parameter and a persistent buffer directly at the root.
struct CompositeWithParametersImpl : torch::nn::Module {
  explicit CompositeWithParametersImpl(std::int64_t width) : l(width, width), u1(width), u2(width) {
    register_module("l", l);
    register_module("u1", u1);
    register_module("u2", u2);
    p = register_parameter("p", torch::randn({width, width}));
    b = register_buffer("b", torch::randn({width, width}));
  }
  torch::Tensor forward(const torch::Tensor& x) { return torch::mm(u2(u1(l(x))), p) + b.sum() * 0.001; }
  torch::nn::Linear l;
  Unit u1, u2;
  torch::Tensor p, b;
};
TORCH_MODULE(CompositeWithParameters);

// Linear layers of these sizes, each followed by a ReLU.
struct ChainImpl : torch::nn::Module {
  explicit ChainImpl(const std::vector<std::int64_t>& sizes) {
    for (std::size_t i = 0; i + 1 < sizes.size(); ++i) {
      layers.emplace_back(sizes[i], sizes[i + 1]);
      register_module("net" + std::to_string(i + 1), layers.back());
    }
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& layer : layers) x = torch::relu(layer(x));
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(Chain);

// Removes the gradients, or sets them to zero.
inline void clear_gradients(const torch::nn::Module& module, bool to_none) {
  for (auto& parameter : module.parameters()) {
    if (!parameter.grad().defined()) continue;
    if (to_none) {
      parameter.mutable_grad() = torch::Tensor();
    } else {
      parameter.mutable_grad().zero_();
    }
  }
}

// Returns the size of the parameters that this rank holds.
inline std::int64_t parameter_bytes(const torch::nn::Module& module) {
  std::int64_t bytes = 0;
  for (const auto& parameter : module.parameters()) bytes += static_cast<std::int64_t>(parameter.nbytes());
  return bytes;
}

// Returns all parameters in full on every rank.
inline std::vector<torch::Tensor> whole_parameters(const torch::nn::Module& module) {
  std::vector<torch::Tensor> whole;
  for (const auto& parameter : module.parameters()) whole.push_back(training::full_tensor(parameter));
  return whole;
}

inline double largest_difference(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].sizes() != b[i].sizes()) return std::numeric_limits<double>::infinity();
    if (a[i].numel() > 0) largest = std::max(largest, (a[i].cpu() - b[i].cpu()).abs().max().item<double>());
  }
  return largest;
}

}  // namespace cairn::testing
