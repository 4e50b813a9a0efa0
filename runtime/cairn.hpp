// Cairn: distributed checkpoints for C++ trainers on LibTorch. Start here.
//
//   cairn::World world = cairn::World::from_environment();        // torchrun, mpirun, srun, …
//   cairn::Checkpointer checkpointer(world);
//   // `model` is a std::shared_ptr; for a holder such as torch::nn::Linear, use model.ptr().
//   cairn::StateDict state{{"model", cairn::stateful(model)}, {"step", step}};
//   checkpointer.save(state, "run/step_100");
//   auto saving = checkpointer.async_save(state, "run/step_200");  // saves in the background
//   saving.result();  // waits; throws if the save failed
//   checkpointer.load(state, "run/step_100");                     // any world size, any layout
//
// To manage all checkpoints of a run, use a cairn::CheckpointManager: see
// runs/checkpoint_manager.hpp.
//
// The free functions below do the same without a Checkpointer object, like DCP's functions of the
// same names.
#pragma once

#include <string>
#include <vector>

#include <cairn/base/error.hpp>
#include <cairn/base/failure.hpp>
#include <cairn/base/version.hpp>
#include <cairn/planning/metadata.hpp>
#include <cairn/runtime/checkpoints/async_handle.hpp>
#include <cairn/runtime/checkpoints/checkpointer.hpp>
#include <cairn/runtime/observation/metrics.hpp>
#include <cairn/runtime/runs/checkpoint_manager.hpp>
#include <cairn/runtime/worlds/world.hpp>
#include <cairn/state/adapters.hpp>
#include <cairn/state/checkpoint_writer.hpp>
#include <cairn/state/planner.hpp>
#include <cairn/state/state_dict.hpp>
#include <cairn/storage/store.hpp>

namespace cairn {

// Do the same as Checkpointer::save, load and load_by_keys, with a checkpointer named "default" in
// `options.world`. With `options.no_dist`, this process saves or loads alone. It also does so with
// neither `no_dist` nor `options.world`, unless a launcher started several ranks
// (docs/launching.md): then these functions throw kPrecondition.
void save(const StateDict& state_dict, const std::string& checkpoint_id, const SaveOptions& options = {});
LoadReport load(StateDict& state_dict, const std::string& checkpoint_id, const LoadOptions& options = {});
StateDict load_by_keys(const std::string& checkpoint_id, const std::vector<std::string>& prefixes = {},
                       const LoadOptions& options = {});

// Does the same as Checkpointer::async_save. The handle keeps the checkpointer "default" alive.
// Dropping the last copy of the handle waits for the save, as ~Checkpointer does. As long as a copy
// of the handle exists, `async_save`, `save`, `load` and `load_by_keys` throw kAlreadyExists for
// the same world.
AsyncSaveResponse async_save(const StateDict& state_dict, const std::string& checkpoint_id, const SaveOptions& options = {},
                             const AsyncSaveOptions& async_options = {});

// Returns the metadata of a checkpoint that Cairn or PyTorch saved, without loading its data. Needs
// no world. Throws kNotFound, kCorrupt, kUnsupported.
Metadata read_metadata(const std::string& checkpoint_id);

}  // namespace cairn
