// Moves the data of this rank: writes it, reads it, publishes the checkpoint if this rank
// coordinates, and after a failure stops the writer and removes its files.
//
//   owns        nothing: the writer or reader belongs to the call
//   talks to    the supervisor, which sends a request per task and gets its TaskReport; each call's
//               executor, on which the hooks run. The writer's own threads end a Write or Read
//   states      none: a rank's machine has one task running, and an Abandon beside a Write
//   deadlines   none: the machine that requests a task has one
//   on death    requests not yet passed on report failures; the supervisor starts a new actor
#pragma once

#include <memory>

#include <caf/typed_actor.hpp>

#include <cairn/actors/local_messages.hpp>
#include <cairn/actors/traced.hpp>

namespace cairn {

using StorageActor =
    caf::typed_actor<caf::reacts_to<Traced<Request<protocol::Write>>>, caf::reacts_to<Traced<Request<protocol::Read>>>,
                     caf::reacts_to<Traced<Request<protocol::Finish>>>, caf::reacts_to<Traced<Request<protocol::AskCommitted>>>,
                     caf::reacts_to<Traced<Request<protocol::Abandon>>>, caf::reacts_to<Traced<Request<protocol::Release>>>>;

StorageActor::behavior_type storage_actor(StorageActor::pointer self, std::shared_ptr<Tracer> tracer);

}  // namespace cairn
