// The interface between actors, which never block, and the hooks of planners, writers, readers and
// Stateful objects, which may block.
#pragma once

#include <functional>

namespace cairn {

class TrainerExecutor {
 public:
  virtual ~TrainerExecutor() = default;
  // Queues `task` and returns. Tasks run one at a time, in order. `save` and `load` run tasks on
  // the thread that called them. An asynchronous save runs tasks on the calling thread until
  // `async_save` returns, and then on a thread of its own. Tasks must not throw. Thread-safe.
  virtual void post(std::function<void()> task) = 0;
};

}  // namespace cairn
