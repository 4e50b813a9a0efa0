// Gives access to the CAF system behind an ActorSystem. Internal: this header needs CAF.
#pragma once

#include <caf/actor_system.hpp>

#include <cairn/actors/actor_system.hpp>

namespace cairn {

// The base of every ActorSystem that `ActorSystem::create` returns.
class CafActorSystem : public ActorSystem {
 public:
  virtual caf::actor_system& caf_system() = 0;
};

// Throws kInvalidArgument if `system` is not a CafActorSystem.
caf::actor_system& caf_system_of(ActorSystem& system);

}  // namespace cairn
