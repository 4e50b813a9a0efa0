// Coordinates the attempts that name this rank as their coordinator.
//
//   owns        one CoordinatorMachine per checkpointer, with its deadlines
//   talks to    only the supervisor, which forwards the coordinator's messages to the ranks and
//               runs the coordinator's tasks
//   states      those of protocol/coordinator_machine.hpp
//   deadlines   the timers of each machine
//   on death    the supervisor starts a new actor, at most `child_restarts_max` times, and tells
//               all ranks that the old actor has died (CoordinatorDown)
#pragma once

#include <cstdint>
#include <memory>

#include <caf/typed_actor.hpp>

#include <cairn/actors/local_messages.hpp>
#include <cairn/actors/options.hpp>
#include <cairn/actors/traced.hpp>

namespace cairn {

using CoordinatorActor =
    caf::typed_actor<caf::reacts_to<Traced<CoordinatorEvent>>, caf::reacts_to<Traced<Stop>>, caf::reacts_to<WakeUp>>;

// For `life` see CoordinatorEffect.
CoordinatorActor spawn_coordinator(caf::actor_system& system, std::shared_ptr<Inbox> supervisor, std::shared_ptr<Tracer> tracer,
                                   const protocol::Identity& world, const RuntimeOptions& options, std::uint64_t life);

}  // namespace cairn
