// TorchScript modules among LibTorch's own.
//
//   torch::jit::Module loaded = torch::jit::load("net.pt");
//   cairn::ScriptModule model(loaded);                                      // or training::Hooked<cairn::ScriptModule>
//   cairn::save({{"model", model}}, id);
//   torch::optim::Adam optimizer(model->parameters(), 1e-3);
//   model(input).sum().backward();
//
// All that takes a torch::nn::Module takes it: state dicts, optimizers, fully_shard, replicate, checkpoint_activations.
#pragma once

#include <ostream>
#include <utility>
#include <vector>

#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

namespace cairn {

// Registers the script's parameters, buffers and submodules (each a ScriptModuleImpl) under their names: those of the eager module that was
// scripted. The tensors are the script's own: casting, moving and training change both. Whoever uses it on one thread at a time may
// use the script beside it. It owns a handle; the script lives as long as one does. A
// frozen script (torch::jit::freeze) has constants for parameters, and registers none.
class ScriptModuleImpl : public torch::nn::Module {
 public:
  explicit ScriptModuleImpl(torch::jit::Module script);

  // Calls the script's `forward`, which returns one tensor (kUnsupported if not: use `run`). Exceptions of the script pass.
  torch::Tensor forward(const torch::Tensor& input, std::vector<c10::IValue> more_arguments = {});
  c10::IValue run(std::vector<c10::IValue> arguments) { return script_.forward(std::move(arguments)); }

  const torch::jit::Module& script() const { return script_; }
  void train(bool on = true) override;  // and the script
  void pretty_print(std::ostream& stream) const override;

 private:
  torch::jit::Module script_;
};
TORCH_MODULE(ScriptModule);

}  // namespace cairn
