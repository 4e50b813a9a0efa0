// Supervises one rank: its child actors, its links, and its side of every call.
//
//                    runtime
//                       | StartCall, CancelCall, Stop
//                       v          Request<CreateLocalPlan>, Request<Write>, ...
//   links <--------> supervisor ----------------> planner, storage ...> executor
//        LinkSend    |       ^ ^                                           :
//        LinkMessage v       | :.................. TaskReport .............:
//                 coordinator  CoordinatorSend, CoordinatorTask
//
//   owns        one RankMachine per checkpointer, with its deadlines; the planner, storage,
//               coordinator and links actors
//   talks to    those actors, and other ranks through the links. Messages of this rank to itself
//               bypass the links and are not encoded. Injected faults drop links by LinkDrop
//   states      running -> stopping (all calls cancelled, waiting for their last tasks) -> stopped
//   deadlines   the timers of each machine
//   on death    of planner, storage or coordinator: attempts that need the actor fail, and a new
//               actor replaces it, at most `child_restarts_max` times
//               of the links actor: all other ranks count as lost, with failures of kind internal
//               its own: the children end too, and running calls end as internal failures
#pragma once

#include <memory>

#include <caf/typed_actor.hpp>

#include <cairn/actors/coordinator_actor.hpp>
#include <cairn/actors/links/links.hpp>
#include <cairn/actors/local_messages.hpp>
#include <cairn/actors/planner_actor.hpp>
#include <cairn/actors/rank_config.hpp>
#include <cairn/actors/storage_actor.hpp>
#include <cairn/actors/traced.hpp>

namespace cairn {

// The current children of a supervisor, for inspection.
struct Children {
  PlannerActor planner;
  StorageActor storage;
  CoordinatorActor coordinator;
};
struct GetChildren {};

using SupervisorActor =
    caf::typed_actor<caf::reacts_to<Traced<StartCall>>, caf::reacts_to<Traced<CancelCall>>, caf::reacts_to<Traced<TaskReport>>,
                     caf::reacts_to<Traced<CoordinatorSend>>, caf::reacts_to<Traced<CoordinatorTask>>,
                     caf::reacts_to<Traced<CoordinatorStopped>>, caf::reacts_to<Traced<Unsent>>, caf::reacts_to<Traced<Stop>>,
                     caf::reacts_to<StopNow>, caf::reacts_to<WakeUp>, caf::reacts_to<LinkDrop>, caf::reacts_to<LinkUp>,
                     caf::reacts_to<LinkDown>, caf::reacts_to<LinkMessage>, caf::reacts_to<LinkRefused>,
                     caf::replies_to<GetChildren>::with<Children>>;

// Starts the supervisor of a rank. `links` may be null in a world of one rank.
SupervisorActor spawn_supervisor(caf::actor_system& system, const RankConfig& config, std::shared_ptr<LinksFactory> links,
                                 std::shared_ptr<Tracer> tracer);

}  // namespace cairn

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cairn::Children)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cairn::GetChildren)
