#include <cairn/training/differentiable.hpp>

#include <torch/torch.h>

#include <cairn/training/torch_compat.hpp>

namespace cairn::training {
namespace {

class Mapped : public torch::autograd::Node {
 public:
  explicit Mapped(TensorMap backward) : backward_(std::move(backward)) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    if (!gradients[0].defined() || !should_compute_output(0)) return {torch::Tensor()};
    return {backward_(gradients[0])};
  }
  std::string name() const override { return "CairnMapped"; }

 private:
  TensorMap backward_;
};

}  // namespace

torch::Tensor differentiable(const torch::Tensor& input, const TensorMap& forward, TensorMap backward) {
  torch::Tensor result;
  {
    const torch::NoGradGuard no_grad;
    result = forward(input);
  }
  if (!torch::GradMode::is_enabled() || !input.requires_grad()) return result;
  // The history of the result must not replace that of the input.
  if (result.is_same(input)) result = input.detach();
  const auto node = make_node<Mapped>(std::move(backward));
  node->set_next_edges(torch::autograd::collect_next_edges(input));
  torch::autograd::set_history(result, node);
  return result;
}

}  // namespace cairn::training
