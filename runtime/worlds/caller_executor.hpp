// Runs hooks on the thread that called `save` or `load`, while that thread is blocked there. An
// asynchronous save runs its first hooks on the thread that called `async_save`, and the others on
// the save's own thread.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <utility>

#include <cairn/actors/call.hpp>
#include <cairn/actors/rank_runtime.hpp>
#include <cairn/base/mutex.hpp>
#include <cairn/base/profiler_range.hpp>

namespace cairn {

// `post` and `deliver` notify under the lock, because the caller destroys this object as soon as it
// has seen the outcome.
class CallerExecutor : public TrainerExecutor {
 public:
  void post(std::function<void()> task) override {
    MutexLock lock(mutex_);
    tasks_.push_back(std::move(task));
    changed_.notify_one();
  }

  // Ends the call. The runtime calls this once. No task may be posted after that.
  void deliver(CallResult outcome) {
    MutexLock lock(mutex_);
    outcome_ = std::move(outcome);
    changed_.notify_one();
  }

  // Runs tasks on the caller's thread until `deliver` has been called and no task is left.
  CallResult run() {
    run_until([] { return false; });
    MutexLock lock(mutex_);
    return std::move(*outcome_);
  }

  // Does the same, but returns earlier, after a task, if `reached` then returns true.
  template <class Reached>
  void run_until(const Reached& reached) {
    while (run_one() && !reached()) {
    }
  }

 private:
  // Waits for a task and runs it. Returns false if there will be no more tasks.
  bool run_one() {
    std::function<void()> task;  // destroyed, with its captures, before the next task runs
    {
      const ProfilerRange range("wait");  // ends without the lock: observers are user code
      MutexLock lock(mutex_);
      while (tasks_.empty() && !outcome_) changed_.wait(mutex_);
      if (tasks_.empty()) return false;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
    return true;
  }

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> tasks_ CAIRN_GUARDED_BY(mutex_);
  std::optional<CallResult> outcome_ CAIRN_GUARDED_BY(mutex_);
};

// Runs an agreement on the calling thread, and returns how it ended. Sets `call.executor`.
inline CallResult run_agreement(RankRuntime& actors, AgreeCall call) {
  CallerExecutor executor;
  call.executor = &executor;
  actors.agree(std::move(call), [&executor](CallResult outcome) { executor.deliver(std::move(outcome)); });
  return executor.run();
}

}  // namespace cairn
