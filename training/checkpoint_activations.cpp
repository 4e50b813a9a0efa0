#include <cairn/training/checkpoint_activations.hpp>

#include <set>

#include <torch/torch.h>

#include <cairn/base/error.hpp>
#include <cairn/training/torch_compat.hpp>

namespace cairn::training::detail {
namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// The states of the generators that a module may draw from.
class RandomState {
 public:
  explicit RandomState(const std::vector<torch::Tensor>& inputs) {
    std::set<std::string> seen;
    const auto keep = [&](at::Device device) {
      if (!seen.insert(device.str()).second || !(device.is_cpu() || device.is_cuda())) return;
      states_.emplace_back(device, state_of(device));
    };
    keep(at::kCPU);
    for (const auto& input : inputs) keep(input.device());
  }
  void restore() const {
    for (const auto& [device, state] : states_) {
      at::Generator generator = at::globalContext().defaultGenerator(device);
      const std::lock_guard lock(generator.mutex());
      generator.set_state(state);
    }
  }

 private:
  static torch::Tensor state_of(at::Device device) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator.mutex());
    return generator.get_state();
  }
  std::vector<std::pair<at::Device, torch::Tensor>> states_;
};

class RestoredAtEnd {
 public:
  explicit RestoredAtEnd(RandomState state) : state_(std::move(state)) {}
  ~RestoredAtEnd() { state_.restore(); }
  RestoredAtEnd(const RestoredAtEnd&) = delete;
  RestoredAtEnd& operator=(const RestoredAtEnd&) = delete;

 private:
  RandomState state_;
};

// Stands for the whole module in the graph.
class ComputedAnew : public torch::autograd::Node {
 public:
  ComputedAnew(Forward forward, const std::vector<torch::Tensor>& inputs, bool preserves_random_state)
      : forward_(std::move(forward)) {
    set_next_edges(torch::autograd::collect_next_edges(inputs));
    for (const auto& input : inputs) {
      inputs_.emplace_back(input, /*is_output=*/false);
      requires_grad_.push_back(input.defined() && input.requires_grad());
    }
    if (preserves_random_state) random_state_.emplace(inputs);
  }

  variable_list apply(variable_list&& gradients) override {
    std::vector<torch::Tensor> inputs;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      const torch::Tensor input = inputs_[i].unpack(pointer_to(*this));
      inputs.push_back(input.defined() ? input.detach().set_requires_grad(requires_grad_[i]) : input);
    }
    variable_list results(inputs.size());
    if (!gradients[0].defined()) return results;
    std::optional<RestoredAtEnd> afterwards;
    if (random_state_) {
      afterwards.emplace(RandomState(inputs));
      random_state_->restore();
    }
    const torch::AutoGradMode with_gradients(true);
    const torch::Tensor output = forward_(inputs);
    afterwards.reset();
    if (output.requires_grad()) torch::autograd::backward({output}, {gradients[0]});
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (requires_grad_[i]) results[i] = inputs[i].grad();
    }
    return results;
  }

  void release_variables() override {
    for (auto& input : inputs_) input.reset_data();
  }
  std::string name() const override { return "ComputedAnew"; }

 private:
  Forward forward_;
  std::vector<SavedVariable> inputs_;
  std::vector<bool> requires_grad_;
  std::optional<RandomState> random_state_;
};

}  // namespace

torch::Tensor call_checkpointed(Forward forward, const std::vector<torch::Tensor>& inputs,
                                const ActivationCheckpointOptions& options) {
  const NodePointer node = make_node<ComputedAnew>(forward, inputs, options.preserve_rng_state);
  torch::Tensor output;
  {
    const torch::NoGradGuard no_grad;
    output = forward(inputs);
  }
  if (!output.defined()) return output;
  output = output.detach();  // the module may have returned an input
  torch::autograd::set_history(output, node);
  return output;
}

void refuse_checkpoint(const char* returned) {
  throw Error(ErrorCode::kUnsupported, std::string("checkpoint_activations: the module returns ") + returned +
                                           ", not one tensor; checkpoint modules inside it instead");
}

}  // namespace cairn::training::detail
