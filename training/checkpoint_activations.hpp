// Activation checkpointing: forward keeps only a module's inputs, and backward runs the module
// again to recompute the rest. Trades time for memory. Modelled on torch.utils.checkpoint.
#pragma once

#include <cairn/training/hooked.hpp>

namespace cairn::training {

// From now on, checkpoints each call made through the holder (`module(input)`), but not calls of
// `module->forward(input)`. Can be combined with fully_shard and replicate. They may be applied
// before or after it, to this module, to modules inside it or to modules around it.
//
// The module must return one tensor; otherwise the call throws kUnsupported. It must compute the
// same result when called again with the same arguments, so its forward must not change state:
// batch norm would update its buffers twice. While backward runs the module again, autocast and
// (with `preserve_rng_state`) the random generators have the state that they had at the call.
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
