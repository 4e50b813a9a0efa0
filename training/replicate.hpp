// Data parallel training: every rank keeps the whole module, gradients are averaged over the ranks while backward goes on. After
// PyTorch's replicate.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include <cairn/training/hooked.hpp>
#include <cairn/training/process_group.hpp>

namespace cairn::training {

struct ReplicateOptions {
  std::int64_t bucket_bytes = std::int64_t{25} << 20;     // gradients of about so many bytes go in one message
  std::vector<const torch::nn::Module*> ignored_modules;  // left alone with all that is in them
};

// Covers exactly the parameters of `module` that no sharded or replicated submodule has; all ranks get the values that rank 0 has.
// What holds for fully_shard's parameters(), optimizers and state dicts holds here (see fully_shard.hpp); state dicts hold
// plain tensors. Buffers are left alone. Models that take part in one backward pass, and are not submodules of one that is wrapped, need a
// process group each. Collective. Throws kPrecondition ("Cannot apply replicate …") for a module that is fully
// sharded or replicated already, kMismatch for ranks that differ.
void replicate(torch::nn::Module& module, const ProcessGroup& group, const ReplicateOptions& options = {});
// The same, and the calls of `module` are a scope.
template <class Contained>
void replicate(Hooked<Contained>& module, const ProcessGroup& group, const ReplicateOptions& options = {});

// The names of the parameters that `replicate` covers in `module`.
std::vector<std::string> replicated_parameters(const torch::nn::Module& module);

namespace detail {
void enter_replicated(torch::nn::Module& module, Boundary& boundary);
}

template <class Contained>
void replicate(Hooked<Contained>& module, const ProcessGroup& group, const ReplicateOptions& options) {
  replicate(*module, group, options);
  detail::enter_replicated(*module, *module.boundary());
}

}  // namespace cairn::training
