// TorchScript modules as LibTorch modules.
//
//   torch::jit::Module loaded = torch::jit::load("net.pt");
//   cairn::ScriptModule model(loaded);  // or training::Hooked<cairn::ScriptModule>
//   cairn::save({{"model", model}}, id);
//   torch::optim::Adam optimizer(model->parameters(), 1e-3);
//   model(input).sum().backward();
//
// Works wherever a torch::nn::Module does: state dicts, optimizers, fully_shard, replicate,
// checkpoint_activations.
#pragma once

#include <ostream>
#include <utility>
#include <vector>

#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

namespace cairn {

// Registers the script's parameters, buffers and submodules (each submodule as a ScriptModuleImpl).
// Their names are those in the eager module from which the script was made. The script and this
// module share these tensors, so casting, moving or training this module also changes the script.
// You may also use the script directly, on one thread at a time. This object keeps the script
// alive. A frozen script (torch::jit::freeze) has constants instead of parameters, so none are
// registered.
class ScriptModuleImpl : public torch::nn::Module {
 public:
  explicit ScriptModuleImpl(const torch::jit::Module& script);

  // Calls the script's `forward`. Throws kUnsupported if the result is not a single tensor. `run`
  // also calls `forward`, and accepts any result. Exceptions of the script pass through. If
  // `fully_shard` or `parallelize` (cairn::training) has distributed the script's parameters, the
  // script runs without the optimizations of LibTorch's graph executor.
  torch::Tensor forward(const torch::Tensor& input, std::vector<c10::IValue> more_arguments = {});
  c10::IValue run(std::vector<c10::IValue> arguments);

  const torch::jit::Module& script() const { return script_; }
  void train(bool on = true) override;  // also sets the script's mode
  void pretty_print(std::ostream& stream) const override;

 private:
  torch::jit::Module script_;
};
TORCH_MODULE(ScriptModule);

}  // namespace cairn
