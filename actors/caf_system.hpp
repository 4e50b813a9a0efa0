// Gives access to the CAF system behind an ActorSystem. Internal: this header needs CAF.
#pragma once

#include <caf/actor_system.hpp>

#include <cairn/actors/actor_system.hpp>

namespace cairn {

// Throws kInvalidArgument if `system` was not made by ActorSystem::create.
caf::actor_system& caf_system_of(ActorSystem& system);

}  // namespace cairn
