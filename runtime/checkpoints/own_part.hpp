// Saves and loads with `use_collectives` off: each rank keeps its own part of a checkpoint, through
// the same code as a world of one rank. Internal.
#pragma once

#include <memory>
#include <string>

#include <cairn/runtime/checkpoints/options.hpp>
#include <cairn/runtime/worlds/world.hpp>

namespace cairn {

// Returns the location of this rank's part of a checkpoint, "" if `checkpoint_id` is.
std::string place_of_part(const std::string& checkpoint_id, const World& world);

// Throws kMismatch if one checkpoint of all ranks, or the parts of a world of another size, are
// where this part should be, and kNotFound if only other ranks have parts. Otherwise the load says
// what is there.
void require_part(const std::string& place);

// Make Cairn's own planners for the part of `rank`.
std::shared_ptr<SavePlanner> make_part_save_planner(const SavePlannerOptions& options, int rank);
std::shared_ptr<LoadPlanner> make_part_load_planner(const LoadPlannerOptions& options, int rank);

// Return the options with which a world of this rank alone saves or loads the part. Throw
// kInvalidArgument if a planner or storage of the user's is set.
SaveOptions options_of_part(SaveOptions options, const std::string& checkpoint_id, const World& world);
LoadOptions options_of_part(LoadOptions options, const World& world);

}  // namespace cairn
