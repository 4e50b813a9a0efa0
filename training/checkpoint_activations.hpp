// Activation checkpointing: a module's forward keeps its inputs only; in backward it is computed anew. Less memory for more time. After
// torch.utils.checkpoint.
#pragma once

#include <cairn/training/hooked.hpp>

namespace cairn::training {

// Calls of `module` through its holder, `module(input)`, are checkpointed from now on. Composes with fully_shard and replicate, in either
// order, on this module, inside it and around it. The module returns one tensor (kUnsupported if not, when it is called), and computes the same
// when it is called again with the same arguments: it changes no state in forward (buffers of batch norm would be updated twice).
// Random draws and autocast are in backward as they were in the call. Gradients come by `backward()`: those of chosen tensors alone
// (autograd::grad), or ones to be differentiated (create_graph), are refused with kUnsupported when they come to the module.
// Arguments that are tensors get gradients; tensors inside other arguments do not. While gradients are off, calls are as always.
template <class Contained>
void checkpoint_activations(Hooked<Contained>& module, const ActivationCheckpointOptions& options = {}) {
  module.boundary()->checkpoint = options;
}

}  // namespace cairn::training
