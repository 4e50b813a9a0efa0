// Saves and loads with `use_collectives` off: each rank keeps its own part of a checkpoint, through
// the same code as a world of one rank. Internal.
#pragma once

#include <memory>
#include <string>

#include <cairn/runtime/checkpoints/options.hpp>
#include <cairn/runtime/worlds/world.hpp>

namespace cairn {

// Returns the location of this rank's part of a checkpoint; "" if `checkpoint_id` is "".
std::string place_of_part(const std::string& checkpoint_id, const World& world);

// Checks, before a load, that the part `place` exists. Throws kMismatch if its parent place has a
// checkpoint of all ranks, or only parts of a world of another size. Throws kNotFound if only other
// ranks of this world have parts there. If there are no parts at all, leaves the error to the load.
void require_part(const std::string& place);

// Makes Cairn's own planner for the part of `rank`.
std::shared_ptr<SavePlanner> make_part_save_planner(const SavePlannerOptions& options, int rank);

// Return the options with which a world of this rank alone saves or loads the part. Throw
// kInvalidArgument if a user-defined planner, writer or reader is set.
SaveOptions options_of_part(SaveOptions options, const std::string& checkpoint_id, const World& world);
LoadOptions options_of_part(LoadOptions options, const World& world);

}  // namespace cairn
