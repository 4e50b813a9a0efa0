// The interface between actors, which never block, and the hooks of planners, writers, readers and
// Stateful objects, which may block.
#pragma once

#include <functional>

namespace cairn {

class TrainerExecutor {
 public:
  virtual ~TrainerExecutor() = default;
  // Runs `task` later, after all tasks posted before it, on one thread: the trainer's own while it
  // is blocked in `save` or `load`. Never runs it inside `post`. Tasks do not throw. Thread-safe.
  virtual void post(std::function<void()> task) = 0;
};

}  // namespace cairn
