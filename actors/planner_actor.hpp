// Runs the tasks of a call that make plans: the local plan of this rank and, if this rank
// coordinates, the global plan. Also runs the task before these, which gathers the state, and the
// task that decides an agreement. Runs all hooks of these tasks, including writer and reader hooks.
//
//   owns        nothing: planners, writers and readers belong to the call
//   talks to    the supervisor, which sends a request per task and gets its TaskReport; each call's
//               executor, on which the hooks run
//   states      none: the state machines that request tasks keep the state of each call
//   deadlines   none: the coordinator's state machine limits the time of each phase
//   on death    requests not yet passed to an executor are reported as failed; the supervisor
//               starts a new actor
#pragma once

#include <memory>

#include <cairn/actors/task_run.hpp>

namespace cairn {

TaskActor::behavior_type planner_actor(TaskActor::pointer self, std::shared_ptr<Tracer> tracer);

}  // namespace cairn
