#include <cairn/training/hooked.hpp>

namespace cairn::training::detail {

torch::Tensor cast_tensor(const torch::Tensor& tensor, at::ScalarType type) {
  return tensor.defined() && tensor.is_floating_point() ? tensor.to(type) : tensor;
}

std::vector<torch::Tensor> cast_tensor(const std::vector<torch::Tensor>& tensors, at::ScalarType type) {
  std::vector<torch::Tensor> cast;
  cast.reserve(tensors.size());
  for (const auto& tensor : tensors) cast.push_back(cast_tensor(tensor, type));
  return cast;
}

std::optional<torch::Tensor> cast_tensor(const std::optional<torch::Tensor>& tensor, at::ScalarType type) {
  return tensor ? std::optional(cast_tensor(*tensor, type)) : std::nullopt;
}

}  // namespace cairn::training::detail
