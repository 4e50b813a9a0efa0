// Data-parallel training: every rank keeps the whole module, and gradients are averaged over the
// ranks while backward still runs. Modelled on PyTorch's replicate.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include <cairn/training/fully_shard.hpp>
#include <cairn/training/hooked.hpp>
#include <cairn/training/process_group.hpp>

namespace cairn::training {

struct ReplicateOptions {
  std::int64_t bucket_bytes = std::int64_t{25} << 20;     // approximate size of a gradient message
  std::vector<const torch::nn::Module*> ignored_modules;  // modules to leave alone, with everything inside them
};

// Replicates the parameters of `module` that no sharded or replicated submodule covers. All ranks
// get the values of rank 0. The rules in fully_shard.hpp apply; in particular, make optimizers
// after wrapping. State dicts hold plain tensors. Buffers are not touched. If one backward pass
// goes through several models that are not parts of a common wrapped model, give each model its own
// process group.
//
// A collective. Throws kPrecondition ("Cannot apply replicate …") if the module is fully sharded or
// replicated already. Throws what fully_shard throws, such as kMismatch if the ranks differ.
void replicate(torch::nn::Module& module, const ProcessGroup& group, const ReplicateOptions& options = {});
// Does the same, and makes each call of `module` a scope, as if a ForwardScope existed during the
// call.
template <class Contained>
void replicate(Hooked<Contained>& module, const ProcessGroup& group, const ReplicateOptions& options = {});

// Returns the names of the parameters that `replicate`, or fully_shard with kNoShard, covers.
std::vector<std::string> replicated_parameters(const torch::nn::Module& module);

template <class Contained>
void replicate(Hooked<Contained>& module, const ProcessGroup& group, const ReplicateOptions& options) {
  replicate(*module, group, options);
  detail::enter_boundary(*module, *module.boundary(), {});
}

}  // namespace cairn::training
