// Functions of one tensor that have a backward of their own, such as what sends tensors between ranks.
#pragma once

#include <functional>

#include <torch/types.h>

namespace cairn::training {

using TensorMap = std::function<torch::Tensor(const torch::Tensor&)>;

// `forward` of `input`, computed without a graph; its result must be a tensor of its own, or `input` itself. Gradients of the result go
// through `backward` to those of the input. Gradients of gradients are there if `backward` is differentiable.
torch::Tensor differentiable(const torch::Tensor& input, const TensorMap& forward, TensorMap backward);

}  // namespace cairn::training
