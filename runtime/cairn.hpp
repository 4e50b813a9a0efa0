// Cairn: distributed checkpoints for C++ trainers on LibTorch. Start here.
//
//   cairn::World world = cairn::World::from_environment();        // torchrun, cairn-launch
//   cairn::Checkpointer checkpointer(world);
//   cairn::StateDict state{{"model", cairn::stateful(model)}, {"step", step}};   // a std::shared_ptr; model.ptr() of a Linear
//   checkpointer.save(state, "run/step_100");
//   auto saving = checkpointer.async_save(state, "run/step_200");  // goes on while the trainer does; saving.result() says how it went
//   checkpointer.load(state, "run/step_100");                     // any world size, any layout
//
// A cairn::CheckpointManager keeps the checkpoints of a whole run: checkpoint_manager.hpp.
//
// The functions below do the same without an object to keep, after DCP's functions of the same names.
#pragma once

#include <string>
#include <vector>

#include <cairn/base/error.hpp>
#include <cairn/base/failure.hpp>
#include <cairn/base/version.hpp>
#include <cairn/planning/metadata.hpp>
#include <cairn/runtime/async_save.hpp>
#include <cairn/runtime/checkpoint_manager.hpp>
#include <cairn/runtime/checkpointer.hpp>
#include <cairn/runtime/metrics.hpp>
#include <cairn/runtime/world.hpp>
#include <cairn/state/adapters.hpp>
#include <cairn/state/planner.hpp>
#include <cairn/state/state_dict.hpp>
#include <cairn/storage/checkpoint_writer.hpp>
#include <cairn/storage/store.hpp>

namespace cairn {

// As Checkpointer::save, load and load_by_keys, by the checkpointer named "default" of `options.world`.
void save(const StateDict& state_dict, const std::string& checkpoint_id, const SaveOptions& options = {});
void load(StateDict& state_dict, const std::string& checkpoint_id, const LoadOptions& options = {});
StateDict load_by_keys(const std::string& checkpoint_id, const std::vector<std::string>& prefixes = {},
                       const LoadOptions& options = {});

// As Checkpointer::async_save. The handle keeps the checkpointer "default": dropping its last copy waits for the save, as
// ~Checkpointer does, and a second save in that world before that throws kAlreadyExists.
AsyncSaveResponse async_save(const StateDict& state_dict, const std::string& checkpoint_id, const SaveOptions& options = {},
                             const AsyncSaveOptions& async_options = {});

// What a checkpoint holds, Cairn's or PyTorch's, without loading it. No world is needed. kNotFound, kCorrupt, kUnsupported.
Metadata read_metadata(const std::string& checkpoint_id);

}  // namespace cairn
