// Makes Stateful objects of modules, optimizers, learning-rate schedulers, random number
// generators, samplers and data positions. Declares tensors that are parts of larger ones. For
// structs of your own, see fields.hpp.
//
// Call these functions on the trainer's thread. Only `declare_shard` and `as_declared` may be
// called on any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Generator.h>
#include <torch/data/samplers/base.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include <cairn/state/state_dict.hpp>

namespace cairn {

// Returns parameters and buffers by name, in PyTorch's order: a module's own parameters, its own
// buffers, then its submodules. As in PyTorch, a tied tensor appears under each of its names.
// Parameters declared with `declare_shard` appear as sharded tensors. The tensors share the
// module's memory.
Dict module_state_dict(const torch::nn::Module& module);
// Copies the tensors of `state_dict` into those of the module. Throws kMismatch, naming every
// missing, unexpected or differing entry, before anything changes.
void load_module_state_dict(torch::nn::Module& module, const Dict& state_dict);

// Returns the state of LibTorch's Adam, AdamW, SGD, RMSprop or Adagrad, nested as in PyTorch:
// {"state": {name: {"step", "exp_avg", …}}, "param_groups": [{"params": [names], "lr", …}]}. The
// groups have all of PyTorch's options. An option that LibTorch lacks, such as "maximize" or
// "initial_lr", has the value that was loaded last. If none was loaded, PyTorch's own options have
// the value that describes LibTorch's behaviour. All options that LibTorch lacks are marked by
// `if_stored`. `module` supplies the parameters' names. Without it they are "0", "1", … (integers
// in "params", as in PyTorch). A parameter that the optimizer lists more than once, such as a tied
// one, appears once, where it is listed first. `step` is an integer; tensors share the optimizer's
// memory.
//
// Creates the state that LibTorch would create in the first step, so that it can be saved and
// loaded before that step. Training continues as if that state had not been created. SGD with
// dampening is special: LibTorch does not dampen a parameter's first step, the step without a
// momentum buffer. The new buffer of zeros is therefore only returned and not given to the
// optimizer, and loading a buffer of zeros leaves the parameter without a buffer.
//
// Throws kUnsupported for other optimizers, and kMismatch for parameters that are not in the
// module.
Dict optimizer_state_dict(torch::optim::Optimizer& optimizer, const torch::nn::Module* module = nullptr);
// Replaces options and state. A parameter without state in `state_dict` starts afresh. State that
// lacks a part that the options need is an error. Momentum without any buffers is an error if the
// optimizer was constructed without momentum. The optimizer keeps options that LibTorch lacks, of
// any type, until the next load, for each group whose parameters stay the same. Such options are an
// error if they would change the training. Throws kMismatch, listing everything that does not fit,
// before anything changes.
void load_optimizer_state_dict(torch::optim::Optimizer& optimizer, const Dict& state_dict,
                               const torch::nn::Module* module = nullptr);

// Return Stateful objects that use the functions above. Throw kInvalidArgument for a null pointer,
// except that an optimizer's `module` may be null.
//
// An optimizer gets all state and options that the checkpoint has, whatever options it was
// constructed with. An optimizer that does not fit is an error before any rank changes anything. If
// the caller replaces both the planner and the reader of a load, Cairn cannot look at the
// checkpoint beforehand, and loads only state and options that the optimizer itself has.
std::shared_ptr<Stateful> stateful(std::shared_ptr<torch::nn::Module> module);
std::shared_ptr<Stateful> stateful(std::shared_ptr<torch::optim::Optimizer> optimizer,
                                   std::shared_ptr<torch::nn::Module> module = nullptr);
// Returns the state of several optimizers of one module in one dict, as PyTorch's
// get_optimizer_state_dict does for a list of optimizers: the state by parameter, and the groups of
// all. A load finds each optimizer's groups by their parameters. Saves and loads throw kMismatch if
// two of the optimizers train one parameter: save each under a key of its own. Throws
// kInvalidArgument for a null pointer.
std::shared_ptr<Stateful> stateful(std::vector<std::shared_ptr<torch::optim::Optimizer>> optimizers,
                                   std::shared_ptr<torch::nn::Module> module);

// Returns the progress of a learning-rate scheduler derived from LRScheduler: {"last_epoch",
// "_step_count", "_last_lr"}, the names that PyTorch uses. "last_epoch" is one less than the number
// of `step()` calls, because PyTorch's constructor takes the first step, which LibTorch takes in
// the first call of `step()`.
//
// Loading restores the number of calls from "last_epoch". LRScheduler and StepLR have no other
// state. Loading does not restore learning rates, which belong to the optimizer; save the optimizer
// as well. "_last_lr" is for information only. StepLR's step size and factor are private in
// LibTorch, so they remain those given to the constructor. A derived class with state of its own
// must save it separately. LibTorch 2.x's ReduceLROnPlateauScheduler is not supported: it is not an
// LRScheduler, and its state is private. Throws kInvalidArgument for a null pointer. Loading throws
// kMismatch if the saved entries are not those of a scheduler.
std::shared_ptr<Stateful> stateful(std::shared_ptr<torch::optim::LRScheduler> scheduler);

// Says whether a state is the same on all ranks.
enum class Held : std::uint8_t {
  // Each rank has its own state and saves it under `<name>.rank_<r>`. A rank for which the
  // checkpoint has no entry keeps its state.
  kByEachRank = 1,
  kByAllAlike,  // identical on all ranks: saved once, loaded by any number of ranks
};

// Returns the state of LibTorch's default random number generators: {"cpu": a uint8 tensor as from
// torch.get_rng_state(), "cuda": [one tensor per device visible to this process, as from
// torch.cuda.get_rng_state_all()]}, without "cuda" if there are no devices. A checkpoint with the
// states of more devices can be loaded, one with fewer cannot. The second function takes any other
// generator: {"state": a uint8 tensor}. Loading throws kMismatch if a state's size differs, before
// anything changes. Throws kInvalidArgument for an undefined generator.
std::shared_ptr<Stateful> stateful_rng(Held held = Held::kByEachRank);
std::shared_ptr<Stateful> stateful(at::Generator generator, Held held = Held::kByEachRank);

// The trainer's position in its data: the next batch to train on. The trainer defines the meaning
// of the numbers. Usually `seed` and `epoch` determine the order of samples in the epoch, and
// `index` counts the samples already used. Must be identical on all ranks.
struct DataPosition {
  std::int64_t seed = 0;
  std::int64_t epoch = 0;
  std::int64_t index = 0;
};
// Saves {"seed", "epoch", "index"}. Throws kInvalidArgument for a null pointer. Loading throws
// kMismatch if the saved entries differ from these.
std::shared_ptr<Stateful> stateful(std::shared_ptr<DataPosition> position);

// Saves the tensors that a sampler's `save` writes to its archive, under the same names. Works for
// LibTorch's samplers and your own. Throws kUnsupported if the archive contains nested archives or
// anything but tensors. RandomSampler writes its whole order, 8 bytes per sample.
//
// Use this function only if the trainer itself asks the sampler for batches. LibTorch's DataLoader
// hides its sampler and resets it at the start of each epoch. A DataLoader with workers also asks
// the sampler for batches ahead of the trainer. With a DataLoader, save a DataPosition instead.
std::shared_ptr<Stateful> stateful(std::shared_ptr<torch::data::samplers::Sampler<>> sampler, Held held = Held::kByEachRank);

// Declares that `parameter` is the part `box` of a tensor of size `size`. State dicts of modules
// then hold a ShardedTensor in place of the parameter, and optimizer state of the same shape is
// sharded in the same way. The declaration belongs to the parameter's TensorImpl and ends with it.
// A later declaration replaces an earlier one. Throws kInvalidArgument if the box is not within
// `size` or does not have the parameter's shape. Thread-safe.
void declare_shard(const torch::Tensor& parameter, const Box& box, const Extents& size);
// Does the same for the part that `rank` holds of a tensor on a mesh. The ShardedTensors then also
// have the mesh and the placements. Also throws kInvalidArgument if `rank` is not in the mesh.
void declare_shard(const torch::Tensor& parameter, const Extents& size, const DeviceMesh& mesh,
                   const std::vector<Placement>& placements, int rank);

// Returns the value for `tensor` in a state dict. `declared` is `tensor` itself, or the parameter
// that `tensor` belongs to. The value is a sharded tensor if `declared` was declared as a shard and
// `tensor` has the shape of that shard, otherwise `tensor`. Throws kMismatch if `tensor` itself was
// declared and its shape has changed since.
Value as_declared(const torch::Tensor& tensor, const torch::Tensor& declared);

}  // namespace cairn
