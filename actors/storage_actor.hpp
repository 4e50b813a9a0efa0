// Runs the writer's and the reader's hooks.
//
//   owns        nothing
//   talks to    the supervisor, which requests hooks; each call's executor, which runs them. The
//               writer's own threads report the end of an asynchronous `write_data` or `read_data`
//               through the hook's ticket
//   states      none: the executor runs hooks one after the other
//   deadlines   none: the machine that requests a hook has one
//   on death    the tickets of hooks not yet passed on report failures; the supervisor starts a
//               new actor
#pragma once

#include <memory>

#include <caf/typed_actor.hpp>

#include <cairn/actors/local_messages.hpp>
#include <cairn/actors/traced.hpp>

namespace cairn {

using StorageActor = caf::typed_actor<caf::reacts_to<Traced<HookRequest>>>;

StorageActor::behavior_type storage_actor(StorageActor::pointer self, std::shared_ptr<Tracer> tracer);

}  // namespace cairn
