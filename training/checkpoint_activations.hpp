// Activation checkpointing: forward keeps only a module's inputs, and backward runs the module
// again to recompute the rest. Trades time for memory. Modelled on torch.utils.checkpoint.
#pragma once

#include <cairn/training/hooked.hpp>

namespace cairn::training {

// Checkpoints later calls of `module` through its holder, `module(input)`. Composes with
// fully_shard and replicate in either order, on this module, inside it and around it.
//
// The module must return one tensor; otherwise the call throws kUnsupported. It must compute the
// same result when called again with the same arguments, so its forward must not change state:
// batch norm would update its buffers twice. Backward restores the random generators and autocast
// to their state at the call.
//
// Only `backward()` is supported. Gradients of chosen tensors (autograd::grad) and differentiable
// gradients (create_graph) throw kUnsupported when backward reaches the module. Tensor arguments
// get gradients; tensors inside other arguments do not. Calls made while grad mode is off are not
// checkpointed.
template <class Contained>
void checkpoint_activations(Hooked<Contained>& module, const ActivationCheckpointOptions& options = {}) {
  module.boundary()->checkpoint = options;
}

}  // namespace cairn::training
