// Runs the writer's and the reader's hooks.
//
//   owns        nothing
//   talks to    the supervisor, which asks; the executor of each call, which runs the hooks; the writer's own threads report
//               the end of an asynchronous `write_data` or `read_data` through the hook's ticket
//   states      none: hooks are in the executor's hands, one after the other
//   deadlines   none: whoever asked has one
//   on death    what it had not passed on yet is reported as failed by its ticket; the supervisor starts another
#pragma once

#include <memory>

#include <caf/typed_actor.hpp>

#include <cairn/actors/local_messages.hpp>
#include <cairn/actors/traced.hpp>

namespace cairn {

using StorageActor = caf::typed_actor<caf::reacts_to<Traced<HookRequest>>>;

StorageActor::behavior_type storage_actor(StorageActor::pointer self, std::shared_ptr<Tracer> tracer);

}  // namespace cairn
