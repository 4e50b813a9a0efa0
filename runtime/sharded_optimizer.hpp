// Optimizer state without an optimizer: laid out as a model's parameters are.
#pragma once

#include <string>

#include <cairn/runtime/checkpointer.hpp>

namespace cairn {

// Loads what is saved under `key` ("optimizer"), without needing an optimizer that has such state: as DCP's
// load_sharded_optimizer_state_dict. `model_state_dict` says by parameter name how tensors lie; state of a parameter's size, of any
// type, is allocated and lies as the parameter does, other tensors are whole, on the CPU. Returns the dict as it was saved, for
// `load_optimizer_state_dict` or `training::set_optimizer_state_dict`. Every rank calls it. Throws kNotFound if nothing is saved there,
// and as Checkpointer::load does.
Dict load_sharded_optimizer_state_dict(Checkpointer& checkpointer, const std::string& checkpoint_id, const std::string& key,
                                       const Dict& model_state_dict, const LoadOptions& options = {});

}  // namespace cairn
