// Modules and optimizers as Stateful objects, and tensors that are parts of larger ones.
//
// All of this runs on the trainer's thread, except for the declarations, which may be made and asked for on any.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cairn/state/state_dict.hpp>

namespace cairn {

// Parameters and buffers by name, in PyTorch's order: of each module its own parameters, its own buffers, then its submodules. A
// tied tensor appears under each of its names, as in PyTorch. Parameters declared with `declare_shard` appear as sharded tensors.
// The tensors are the live ones.
Dict module_state_dict(const torch::nn::Module& module);
// Copies into the live tensors what is not already in them. Throws kMismatch with every missing, unexpected or differing name,
// before anything changes.
void load_module_state_dict(torch::nn::Module& module, const Dict& state_dict);

// The state of LibTorch's Adam, AdamW, SGD, RMSprop and Adagrad, nested as PyTorch's: {"state": {name: {"step", "exp_avg", …}},
// "param_groups": [{"params": [names], "lr", …}]}. `module` gives the parameters' names; without one they are "0", "1", … (and
// whole numbers in "params", as in PyTorch). `step` is a whole number, tensors are the live ones.
//
// State that LibTorch would create in the first step is there before it, as it would be created, so that there is something to save
// and to load into; training goes on as if it had not been. Only SGD's momentum with dampening differs (its first step is not
// dampened): there, a buffer of zeros stands for "no step yet".
//
// Throws kUnsupported for other optimizers, kMismatch for parameters that are not the module's.
Dict optimizer_state_dict(torch::optim::Optimizer& optimizer, const torch::nn::Module* module = nullptr);
// Takes over options and state; a parameter that has none in `state_dict` starts afresh. Options that LibTorch's optimizers lack
// are ignored, unless they would change the training (kMismatch). Throws kMismatch with everything that does not fit, before
// anything changes.
void load_optimizer_state_dict(torch::optim::Optimizer& optimizer, const Dict& state_dict,
                               const torch::nn::Module* module = nullptr);

// The above as objects. Each throws kInvalidArgument for a null pointer (`module` of an optimizer may be one).
std::shared_ptr<Stateful> stateful(std::shared_ptr<torch::nn::Module> module);
std::shared_ptr<Stateful> stateful(std::shared_ptr<torch::optim::Optimizer> optimizer,
                                   std::shared_ptr<torch::nn::Module> module = nullptr);

// Declares that `parameter` (kept by its TensorImpl, for as long as that lives) is the part `box` of a tensor of size `size`.
// State dicts of modules then hold a ShardedTensor in its place; optimizer state of the same shape follows it. A later declaration
// replaces an earlier one. Throws kInvalidArgument if the box does not lie within the size or is not of the parameter's.
// Thread-safe.
void declare_shard(const torch::Tensor& parameter, const Box& box, const Extents& size);
// The same for the part that `rank` has of a tensor that lies on a mesh; the ShardedTensors know the mesh and the placements.
void declare_shard(const torch::Tensor& parameter, const Extents& size, const DeviceMesh& mesh,
                   const std::vector<Placement>& placements, int rank);
// The declaration, if there is one. Thread-safe.
std::optional<std::pair<Box, Extents>> declared_shard(const torch::Tensor& parameter);

// `tensor` as a state dict holds it: a sharded tensor if `declared` (the tensor itself, or the parameter that its shape follows)
// was declared and has its shape.
Value as_declared(const torch::Tensor& tensor, const torch::Tensor& declared);

}  // namespace cairn
