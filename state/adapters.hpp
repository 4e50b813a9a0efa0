// Modules, optimizers, learning-rate schedulers, random number generators, samplers and places in the data as Stateful objects, and
// tensors that are parts of larger ones. A struct of your own: see fields.hpp.
//
// All of this runs on the trainer's thread, except for the declarations, which may be made and asked for on any.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include <ATen/core/Generator.h>
#include <torch/data/samplers/base.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>

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

// How far a learning-rate scheduler of LibTorch's is, any class derived from LRScheduler: {"last_epoch", "_step_count", "_last_lr"}, as
// PyTorch names them. PyTorch's constructor takes the step that LibTorch's first `step()` is: "last_epoch" is one less than the
// number of `step()` calls.
//
// Loading restores the number of calls, from "last_epoch", which is all the state that LRScheduler and StepLR have. Not restored: the
// learning rates, which are the optimizer's (save that too; "_last_lr" is for people), and StepLR's step size and factor, which
// LibTorch gives no access to: they are what the constructor was given. A class of your own with state of its own saves that by
// itself, beside this. ReduceLROnPlateauScheduler of LibTorch 2.x keeps all its state private, and is no LRScheduler.
// Throws kInvalidArgument for a null pointer; loading throws kMismatch.
std::shared_ptr<Stateful> stateful(std::shared_ptr<torch::optim::LRScheduler> scheduler);

// Whose a state is that ranks may have in common or not.
enum class Held : std::uint8_t {
  kByEachRank = 1,  // each rank saves its own, under `<name>.rank_<r>`; a rank that the checkpoint has none for keeps what it has
  kByAllAlike,      // saved once, loaded by any number of ranks
};

// LibTorch's default random number generators: {"cpu": a uint8 tensor as torch.get_rng_state() gives, "cuda": [one for each device that
// this process sees, as torch.cuda.get_rng_state_all() gives]}; no "cuda" where there are no devices. A checkpoint from more
// devices loads, one from fewer does not. Other generators of the trainer: the second form, {"state": a uint8 tensor}.
// Loading throws kMismatch for states of another size, before any changes; kInvalidArgument for an undefined generator.
std::shared_ptr<Stateful> stateful_rng(Held held = Held::kByEachRank);
std::shared_ptr<Stateful> stateful(at::Generator generator, Held held = Held::kByEachRank);

// Where a trainer is in its data: with which batch to go on. What the numbers mean is the trainer's affair; as a rule the epoch's order
// of samples is drawn from `seed` and `epoch`, and `index` of them were trained on. Alike on all ranks.
struct DataPosition {
  std::int64_t seed = 0;
  std::int64_t epoch = 0;
  std::int64_t index = 0;
};
// {"seed", "epoch", "index"}. Throws kInvalidArgument for a null pointer; loading throws kMismatch.
std::shared_ptr<Stateful> stateful(std::shared_ptr<DataPosition> position);

// A sampler of LibTorch's, or of one's own class: what it writes to an archive in its `save`, by the same names; nested archives and
// anything but tensors: kUnsupported. RandomSampler writes its whole order, 8 bytes a sample.
//
// For samplers that the trainer itself asks for batches: LibTorch's DataLoader keeps its sampler to itself, resets it when an epoch
// begins, and with workers asks it ahead of the trainer. With a DataLoader save a DataPosition.
std::shared_ptr<Stateful> stateful(std::shared_ptr<torch::data::samplers::Sampler<>> sampler, Held held = Held::kByEachRank);

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
