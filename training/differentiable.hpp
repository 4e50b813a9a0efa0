// Calls a function of one tensor that has its own backward function, such as a function that sends
// tensors between ranks.
#pragma once

#include <functional>

#include <torch/types.h>

namespace cairn::training {

using TensorMap = std::function<torch::Tensor(const torch::Tensor&)>;

// Returns `forward(input)`, computed without a graph. `forward` must return a new tensor or `input`
// itself. `backward` maps the gradient of the result to the gradient of the input. If `backward` is
// differentiable, so are the gradients.
torch::Tensor differentiable(const torch::Tensor& input, const TensorMap& forward, TensorMap backward);

}  // namespace cairn::training
