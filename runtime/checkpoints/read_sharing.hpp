// How the loads of a world share what their ranks read (LoadOptions::read_once). Internal.
#pragma once

#include <cairn/runtime/checkpoints/options.hpp>
#include <cairn/runtime/worlds/world.hpp>
#include <cairn/state/call_hooks.hpp>
#include <cairn/state/storage.hpp>

namespace cairn {

// Returns an empty result if planner or reader are the user's. `world` and `reader` must outlive
// the load.
ReadSharing read_sharing(const World& world, StorageReader& reader, const LoadOptions& options);

}  // namespace cairn
