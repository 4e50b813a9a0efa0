// Moves the data of this rank: writes it, reads it, publishes the checkpoint if this rank
// coordinates, and after a failure stops the writer. If the outcome says that the checkpoint does
// not exist, removes the writer's files; the coordinator's writer then also ends the attempt in the
// store.
//
//   owns        nothing: the writer or reader belongs to the call
//   talks to    the supervisor, which sends a request per task and gets its TaskReport; each call's
//               executor, on which the hooks run. A Write or Read may end on a thread of
//               the writer or reader
//   states      none: the state machines that request tasks keep the state of each call
//   deadlines   none: the coordinator's state machine limits the time of each phase. Nothing limits
//               Abandon and Release after the outcome
//   on death    requests not yet passed to an executor are reported as failed; the supervisor
//               starts a new actor
#pragma once

#include <memory>

#include <cairn/actors/task_run.hpp>

namespace cairn {

TaskActor::behavior_type storage_actor(TaskActor::pointer self, std::shared_ptr<Tracer> tracer);

}  // namespace cairn
