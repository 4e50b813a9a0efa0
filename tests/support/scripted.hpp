// TorchScript modules built in memory.
#pragma once

#include <string>
#include <vector>

#include <torch/csrc/jit/api/module.h>
#include <torch/torch.h>

namespace cairn::testing {

// Returns linear layers "net1", "net2", … of these sizes, each followed by a ReLU, and a buffer
// that counts the forward calls in training mode.
inline torch::jit::Module scripted_chain(const std::vector<std::int64_t>& sizes) {
  torch::jit::Module chain("Chain");
  std::string forward = "def forward(self, x):\n  if self.training:\n    self.calls.add_(1)\n";
  for (std::size_t i = 0; i + 1 < sizes.size(); ++i) {
    const std::string name = "net" + std::to_string(i + 1);
    const torch::nn::Linear eager(sizes[i], sizes[i + 1]);
    torch::jit::Module linear("Linear" + std::to_string(i + 1));
    linear.register_parameter("weight", eager->weight, /*is_buffer=*/false);
    linear.register_parameter("bias", eager->bias, /*is_buffer=*/false);
    linear.define("def forward(self, x):\n  return torch.linear(x, self.weight, self.bias)\n");
    chain.register_module(name, linear);
    forward += "  x = torch.relu(self." + name + ".forward(x))\n";
  }
  chain.register_attribute("training", c10::BoolType::get(), true);
  chain.register_buffer("calls", torch::zeros({1}));
  chain.define(forward + "  return x\n");
  return chain;
}

}  // namespace cairn::testing
