// State dicts of models and optimizers, whatever wraps them. After torch.distributed.checkpoint.state_dict.
//
// Names are the plain model's. Without options, tensors are the live ones: parameters and buffers as they are, sharded ones as
// ShardedTensor on their mesh, so that a load fills them in place. Optimizer state is keyed by parameter name, {"state": {name: {…}},
// "param_groups": […]}, and is there before the first step, as cairn::optimizer_state_dict has it.
//
// Every rank calls these with the same options; `full_state_dict` and `broadcast_from_rank0` are collectives.
#pragma once

#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cairn/state/adapters.hpp>
#include <cairn/state/state_dict.hpp>
#include <cairn/training/fully_shard.hpp>

namespace cairn::training {

struct StateDictOptions {
  bool full_state_dict = false;  // whole tensors instead of sharded ones: copies
  bool cpu_offload = false;      // copies on the CPU; together with full_state_dict on rank 0 only, the others get empty dicts
  bool ignore_frozen_params = false;
  // Only what lies in these modules, which are submodules of the model. For models only.
  std::vector<const torch::nn::Module*> submodules;
  bool keep_submodule_prefixes = true;  // else names begin at the submodule
  // For `set_…`: names that are missing or unexpected are an error; of an optimizer, state of parameters that require gradients. Off: they
  // are passed over, and what the dict lacks stays as it is.
  bool strict = true;
  // For `set_model_state_dict`: rank 0 has whole tensors and sends each rank its part; what other ranks pass is ignored. With
  // `full_state_dict`. Optimizers refuse it (kUnsupported).
  bool broadcast_from_rank0 = false;
  // {"state.<name>.exp_avg": …, "param_groups.<name>.lr": …}: each parameter with its own options.
  bool flatten_optimizer_state_dict = false;
};

// Throw kInvalidArgument for options that contradict each other, and for a submodule that is none of the model's.
Dict get_model_state_dict(const torch::nn::Module& model, const StateDictOptions& options = {});
// Throws as cairn::optimizer_state_dict does; kMismatch for an optimizer that was made before the model was wrapped.
Dict get_optimizer_state_dict(const torch::nn::Module& model, torch::optim::Optimizer& optimizer,
                              const StateDictOptions& options = {});
std::pair<Dict, Dict> get_state_dict(const torch::nn::Module& model, torch::optim::Optimizer& optimizer,
                                     const StateDictOptions& options = {});

// What the functions above give where the options do not ask for whole tensors: for all sharded parameters in `module`, which need not be wrapped
// itself. The same on all ranks; kFull makes them collectives. Parameters that are cut by parallelize only are always sharded tensors, those
// of `no_shard` and `replicate` plain ones. Modules as such in a state dict are not asked for it: they are saved as sharded.
void set_state_dict_type(torch::nn::Module& module, StateDictType type);
// The type that was set, kSharded if none was. Throws kPrecondition if there is no wrapped parameter in `module`, or if types differ within it.
StateDictType state_dict_type(const torch::nn::Module& module);

// Take over what is in the dict: in place, nothing for tensors that are the live ones. Each tensor is either whole, or this rank's part.
// Throw kMismatch with everything that does not fit, before anything changes; `set_state_dict` sets the model's, then the optimizer's, each
// by itself.
void set_model_state_dict(torch::nn::Module& model, const Dict& state_dict, const StateDictOptions& options = {});
// Options of the groups (learning rates and so on) come with it.
void set_optimizer_state_dict(const torch::nn::Module& model, torch::optim::Optimizer& optimizer, const Dict& state_dict,
                              const StateDictOptions& options = {});
void set_state_dict(torch::nn::Module& model, torch::optim::Optimizer& optimizer, const Dict& model_state_dict,
                    const Dict& optimizer_state_dict, const StateDictOptions& options = {});

}  // namespace cairn::training
