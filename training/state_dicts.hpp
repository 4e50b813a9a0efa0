// State dicts of models and optimizers, wrapped or not. Modelled on
// torch.distributed.checkpoint.state_dict.
//
// Names are those of the plain model. By default, tensors share memory with the model and the
// optimizer, so a load fills them in place: sharded parameters are ShardedTensors on their mesh,
// and other parameters and buffers are plain tensors. Optimizer state is keyed by parameter name,
// {"state": {name: {…}}, "param_groups": […]}, and exists before the first step, as in
// cairn::optimizer_state_dict.
//
// Every rank must call these functions with the same options. With `full_state_dict` or
// `broadcast_from_rank0` they are collectives.
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
  bool full_state_dict = false;  // copies of whole tensors instead of sharded tensors
  bool cpu_offload = false;      // copies on the CPU; with full_state_dict, only rank 0 gets them and other ranks get empty dicts
  bool ignore_frozen_params = false;
  // Restricts the dict to these submodules of the model. For models only.
  std::vector<const torch::nn::Module*> submodules;
  bool keep_submodule_prefixes = true;  // false: names are relative to the submodule
  // For `set_…`: throw if names are missing or unexpected. For an optimizer, only state of
  // parameters that require gradients can be missing. If false, unexpected names are ignored, and
  // missing entries keep their values.
  bool strict = true;
  // For the `set_…` functions: rank 0 passes whole tensors and sends each rank its part. For an
  // optimizer, rank 0 also sends the options. Ignores other ranks' dicts. Needs `full_state_dict`.
  bool broadcast_from_rank0 = false;
  // The optimizer's dict is flat, with the options of each parameter instead of those of groups:
  // {"state.<name>.exp_avg": …, "param_groups.<name>.lr": …}.
  bool flatten_optimizer_state_dict = false;
};

// Returns the state of the model. Like the functions below, throws kInvalidArgument if options
// contradict each other or a submodule does not belong to the model.
Dict get_model_state_dict(const torch::nn::Module& model, const StateDictOptions& options = {});
// Returns the state of the optimizer. Throws as cairn::optimizer_state_dict does. Throws kMismatch
// if the optimizer was made before the model was wrapped.
Dict get_optimizer_state_dict(const torch::nn::Module& model, torch::optim::Optimizer& optimizer,
                              const StateDictOptions& options = {});
std::pair<Dict, Dict> get_state_dict(const torch::nn::Module& model, torch::optim::Optimizer& optimizer,
                                     const StateDictOptions& options = {});

// Sets the form in which the functions above return the sharded parameters in `module`, unless
// `full_state_dict` asks for whole tensors. `module` itself need not be wrapped. Call it with the
// same type on all ranks; kFull turns the functions into collectives. Parameters cut only by
// parallelize are always sharded tensors. Parameters under kNoShard or `replicate` are always plain
// tensors. A module placed directly in a state dict ignores the type and is saved sharded.
void set_state_dict_type(torch::nn::Module& module, StateDictType type);
// Returns the type that was set, or kSharded. Throws kPrecondition if no parameter in `module` is
// wrapped, or if types differ within it.
StateDictType state_dict_type(const torch::nn::Module& module);

// Copy the dict's values into the live tensors. Entries that already are the live tensors need no
// copy. Each tensor in the dict may be whole or this rank's part. Throw kMismatch, listing
// everything that does not fit, before anything changes: `set_state_dict` checks the optimizer
// before it sets the model.
void set_model_state_dict(torch::nn::Module& model, const Dict& state_dict, const StateDictOptions& options = {});
// Also sets the options of the parameter groups, such as learning rates.
void set_optimizer_state_dict(const torch::nn::Module& model, torch::optim::Optimizer& optimizer, const Dict& state_dict,
                              const StateDictOptions& options = {});
void set_state_dict(torch::nn::Module& model, torch::optim::Optimizer& optimizer, const Dict& model_state_dict,
                    const Dict& optimizer_state_dict, const StateDictOptions& options = {});

}  // namespace cairn::training
