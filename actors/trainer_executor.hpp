// The seam between actors, which never block, and hooks of planners, writers, readers and Stateful objects, which may do anything.
#pragma once

#include <functional>

namespace cairn {

class TrainerExecutor {
 public:
  virtual ~TrainerExecutor() = default;
  // Runs `task` later, after all tasks posted before it, on one thread: the trainer's own while it is blocked in `save` or `load`.
  // Never runs it inside `post`. Thread-safe. Tasks do not throw.
  virtual void post(std::function<void()> task) = 0;
};

}  // namespace cairn
