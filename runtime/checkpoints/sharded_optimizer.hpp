// Loads optimizer state, sharded like a model's parameters, without an optimizer.
#pragma once

#include <string>

#include <cairn/runtime/checkpoints/checkpointer.hpp>

namespace cairn {

// Loads the optimizer state saved under `key` (for example "optimizer"), as DCP's
// load_sharded_optimizer_state_dict does. Needs no optimizer that already has such state.
// `model_state_dict` gives the layout of each parameter by name. A state tensor that has the same
// size as its parameter is sharded like the parameter, whatever the state tensor's dtype. Other
// tensors are loaded whole, on the CPU. Returns the dict as it was saved, for
// `load_optimizer_state_dict` or `training::set_optimizer_state_dict`. Every rank must call this
// function. Throws kNotFound if nothing is saved under `key`, kUnsupported for a dtype that this
// LibTorch lacks, and the errors of read_metadata and Checkpointer::load.
Dict load_sharded_optimizer_state_dict(Checkpointer& checkpointer, const std::string& checkpoint_id, const std::string& key,
                                       const Dict& model_state_dict, const LoadOptions& options = {});

}  // namespace cairn
