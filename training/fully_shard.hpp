// Fully sharded training: every rank keeps only its own rows of each parameter, and of the
// parameter's gradient and optimizer state. Parameters are gathered when they are used, and freed
// again. Modelled on PyTorch's fully_shard (FSDP2). docs/training.md explains it with a picture.
//
//   training::Hooked<Net> model(…);      // an ordinary module
//   for (auto& layer : *model->layers) training::fully_shard(*layer, mesh);
//   training::fully_shard(model, mesh);  // the rest; wrap inner modules first
//   torch::optim::AdamW optimizer(model->parameters(), 1e-3);  // after wrapping, to get the shards
//   model(input).sum().backward();       // as with any module
//   training::clip_grad_norm(*model, 1.0);
//   optimizer.step();
//
// A module's own members (`weight`) remain the same tensor objects. The model computes with them,
// and any operation that reads a member gathers it, however the module is called. The tensors that
// the module *registers* (`parameters()`, `named_parameters()`) become the shards: leaf tensors
// that hold this rank's rows, under the same names, and that receive the gradients. State dicts
// (`cairn::stateful(model)`, `module_state_dict`) hold the shards as sharded tensors under the
// names of the plain model.
//
// LibTorch's elementwise operations, such as those of optimizers, work on shards, on their
// gradients and on tensors computed from them. Operations that combine elements, such as norms and
// sums, would return a different number on each rank: they throw kUnsupported, and the error names
// the function to use.
//
// A unit is a set of parameters that are gathered together (see fully_shard below). All ranks of
// the mesh must wrap the same modules in the same order, and use the same units in the same order.
// Use a model from one thread at a time. Each of the following mistakes throws an Error:
// - changing a parameter's gathered copy (kPrecondition, immediately);
// - moving, casting or re-registering parameters after wrapping;
// - training with an optimizer that was made before wrapping;
// - wrapping a module twice.
//
// In its forward, a module must not read its parameters through `parameters()` or a raw pointer.
#pragma once

#include <cstdint>

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cairn/training/hooked.hpp>
#include <cairn/training/process_mesh.hpp>
#include <cairn/training/sharding_options.hpp>

namespace cairn::training {

// Makes one unit from the parameters of `module` that no inner unit has taken. A mesh with one axis
// shards over that axis. A mesh with two axes shards over the second and replicates over the first
// (hybrid sharding); all replicas get the parameter values of the first replica. Throws
// kInvalidArgument for more axes.
//
// Throws kMismatch, naming the ranks whose parameters or options differ from those of rank 0.
// Throws kPrecondition if the module is wrapped already. Throws kUnsupported for a parameter that
// has no dimensions, is complex or is not strided, and for parameters on several devices. Throws
// kInvalidArgument for parameters that are not leaf tensors or whose memory overlaps.
void fully_shard(torch::nn::Module& module, const ProcessMesh& mesh, const FullyShardOptions& options = {});
// Does the same, and makes each call of `module` a scope: parameters gathered in a call are freed
// when the call ends.
template <class Contained>
void fully_shard(Hooked<Contained>& module, const ProcessMesh& mesh, const FullyShardOptions& options = {});

// --- training ------------------------------------------------------------------------------------

// Sets whether backward passes average gradients over the ranks, for all units in `module`.
// Default: on. While off, whole gradients accumulate on this rank, in the type that the model
// computes in; the next backward pass for which this is on averages them as well. A backward pass
// that throws discards the accumulated gradients. All ranks must set the same value.
void set_gradient_sync(torch::nn::Module& module, bool on);

// Scales all gradients of `module` so that their total norm, over all parameters and all ranks, is
// at most `max_norm`. Returns the norm before scaling. `norm_type` must be above 0; infinity means
// the largest absolute value. For a parameter that belongs to no unit and is not cut over ranks,
// only this rank's own gradient counts. A collective.
double clip_grad_norm(torch::nn::Module& module, double max_norm, double norm_type = 2.0);

// On every rank, returns a copy of the whole parameter that `shard` is a part of. `shard` is one of
// the module's parameters(). For a plain tensor, returns a copy of it. A collective.
torch::Tensor full_tensor(const torch::Tensor& shard);

// Returns a copy of the whole gradient of the parameter behind `shard`; an undefined tensor if
// there is none. A collective. After a backward pass that averaged gradients (set_gradient_sync),
// either all ranks have a gradient or no rank has one.
torch::Tensor full_grad(const torch::Tensor& shard);

// Returns `shard`, or a shard's gradient, as a plain tensor over the same memory. LibTorch's
// functions then see only this rank's part.
torch::Tensor local_tensor(const torch::Tensor& shard);

struct MemoryUse {  // bytes on this rank
  std::int64_t shards = 0;
  std::int64_t gathered = 0;       // now
  std::int64_t gathered_peak = 0;  // since the last reset
  std::int64_t gathers = 0;        // how many times a unit was gathered
};
// Adds up all units in `module`. The peak is that of the whole model that `module` belongs to.
MemoryUse memory_use(const torch::nn::Module& module);
void reset_memory_peak(const torch::nn::Module& module);

// -------------------------------------------------------------------------------------------------

namespace detail {
void enter_boundary(torch::nn::Module& module, Boundary& boundary, const FullyShardOptions& options);
}

template <class Contained>
void fully_shard(Hooked<Contained>& module, const ProcessMesh& mesh, const FullyShardOptions& options) {
  fully_shard(*module, mesh, options);
  detail::enter_boundary(*module, *module.boundary(), options);
}

}  // namespace cairn::training
