#include <cairn/training/checkpoint_activations.hpp>

#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ATen/autocast_mode.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include <cairn/base/error.hpp>
#include <cairn/training/torch_compat.hpp>

namespace cairn::training::detail {
namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// Returns nothing if the process has not used CUDA.
std::optional<at::Device> current_cuda_device() {
  if (!at::globalContext().hasCUDA()) return std::nullopt;
  const at::Device current = c10::impl::VirtualGuardImpl(at::kCUDA).getDevice();
  return at::detail::getCUDAHooks().hasPrimaryContext(current.index()) ? std::optional(current) : std::nullopt;
}

// The states of the generators that a module may draw from.
class RandomState {
 public:
  explicit RandomState(const std::vector<torch::Tensor>& inputs) {
    std::set<std::string> seen;
    const auto keep = [&](at::Device device) {
      if (!seen.insert(device.str()).second || !(device.is_cpu() || device.is_cuda())) return;
      at::Generator generator = at::globalContext().defaultGenerator(device);
      const std::lock_guard lock(generator.mutex());
      states_.emplace_back(device, generator.get_state());
    };
    keep(at::kCPU);
    for (const auto& input : inputs) {
      if (input.defined()) keep(input.device());
    }
    if (const auto device = current_cuda_device()) keep(*device);  // the current device, even if no input is on it
  }
  void restore() const {
    for (const auto& [device, state] : states_) {
      at::Generator generator = at::globalContext().defaultGenerator(device);
      const std::lock_guard lock(generator.mutex());
      generator.set_state(state);
    }
  }

 private:
  std::vector<std::pair<at::Device, torch::Tensor>> states_;
};

// The autocast state of the thread. `restore` sets it to the state at construction.
class AutocastState {
 public:
  AutocastState() {
    for (std::size_t i = 0; i < std::size(kDevices); ++i) autocast_[i] = autocast_on(kDevices[i]);
  }
  void restore() const {
    for (std::size_t i = 0; i < std::size(kDevices); ++i) set_autocast_on(kDevices[i], autocast_[i]);
  }

 private:
  static constexpr at::DeviceType kDevices[] = {at::kCPU, at::kCUDA};
  Autocast autocast_[std::size(kDevices)];
};

// Turns off autocast's cache of cast parameters while it exists. Casts cached without a graph would
// stop gradients elsewhere. Casts cached in a backward pass would become stale when the optimizer
// changes the parameters.
struct WithoutCastCache {
  WithoutCastCache() { at::autocast::set_autocast_cache_enabled(false); }
  ~WithoutCastCache() { at::autocast::set_autocast_cache_enabled(was_enabled); }
  const bool was_enabled = at::autocast::is_autocast_cache_enabled();
};

template <class State>
struct RestoredAtEnd {
  ~RestoredAtEnd() { state.restore(); }
  const State state;
};

[[noreturn]] void refuse_pass(const std::string& what) {
  throw Error(ErrorCode::kUnsupported,
              "checkpoint_activations: " + what + "; call backward() on the loss, or do without checkpointing here");
}

// Represents the whole module in the graph.
// Autograd keeps this node and the inputs instead of the module's activations.
class ComputedAnew : public torch::autograd::Node {
 public:
  ComputedAnew(Forward forward, const std::vector<torch::Tensor>& inputs, bool preserves_random_state)
      : forward_(std::move(forward)) {
    set_next_edges(torch::autograd::collect_next_edges(inputs));
    for (const auto& input : inputs) {
      // A SavedVariable notices if the input is changed in place before the backward pass.
      inputs_.emplace_back(input, /*is_output=*/false);
      requires_grad_.push_back(input.defined() && input.requires_grad());
    }
    if (preserves_random_state) random_state_.emplace(inputs);
  }

  variable_list apply(variable_list&& gradients) override {
    std::vector<torch::Tensor> inputs;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      const torch::Tensor input = inputs_[i].unpack(pointer_to(*this));
      // Detached, so that the backward pass below ends at the inputs, whose gradients this node
      // returns.
      inputs.push_back(input.defined() ? input.detach().set_requires_grad(requires_grad_[i]) : input);
    }
    variable_list results(inputs.size());
    // No gradient reached the output.
    if (!gradients[0].defined()) return results;
    if (!torch::autograd::Engine::get_default_engine().is_checkpoint_valid())
      refuse_pass("gradients of chosen tensors alone (autograd::grad, or inputs given to backward) would reach all parameters");
    if (c10::GradMode::is_enabled()) refuse_pass("gradients are not differentiable themselves (create_graph)");
    const torch::AutoGradMode with_gradients(true);
    const torch::Tensor output = compute(inputs);
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
  torch::Tensor compute(const std::vector<torch::Tensor>& inputs) const {
    const RestoredAtEnd<AutocastState> autocast_afterwards{};
    autocast_.restore();
    const WithoutCastCache without_cache;
    if (!random_state_) return forward_(inputs);
    // Draws the numbers of the forward call again, and leaves those that the trainer draws next as
    // they were.
    const RestoredAtEnd<RandomState> random_afterwards{RandomState(inputs)};
    random_state_->restore();
    return forward_(inputs);
  }

  Forward forward_;
  AutocastState autocast_;
  std::vector<SavedVariable> inputs_;
  std::vector<bool> requires_grad_;
  std::optional<RandomState> random_state_;
};

}  // namespace

torch::Tensor call_checkpointed(const Forward& forward, const std::vector<torch::Tensor>& inputs,
                                const ActivationCheckpointOptions& options) {
  // First: the node keeps the states of the generators from before the forward call.
  const NodePointer node = make_node<ComputedAnew>(forward, inputs, options.preserve_rng_state);
  torch::Tensor output;
  {
    const torch::NoGradGuard no_grad;
    const WithoutCastCache without_cache;
    output = forward(inputs);
  }
  if (!output.defined()) return output;
  output = output.detach();  // a new tensor, because the module may have returned an input
  torch::autograd::set_history(output, node);
  return output;
}

void refuse_checkpoint(const char* returned) {
  throw Error(ErrorCode::kUnsupported, std::string("checkpoint_activations: the module returns ") + returned +
                                           ", not one tensor; checkpoint modules inside it instead");
}

}  // namespace cairn::training::detail
