#include <cairn/runtime/worlds/caller_executor.hpp>

#include <utility>

#include <cairn/actors/rank_runtime.hpp>
#include <cairn/base/profiler_range.hpp>

namespace cairn {

// `post` and `deliver` notify under the lock, because the caller destroys this object as soon as it
// has seen the outcome.
void CallerExecutor::post(std::function<void()> task) {
  MutexLock lock(mutex_);
  tasks_.push_back(std::move(task));
  changed_.notify_one();
}

void CallerExecutor::deliver(CallResult outcome) {
  MutexLock lock(mutex_);
  outcome_ = std::move(outcome);
  changed_.notify_one();
}

// Waits for a task and runs it. Returns false if there will be no more tasks.
bool CallerExecutor::run_one() {
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

CallResult CallerExecutor::run() {
  while (run_one()) {
  }
  MutexLock lock(mutex_);
  return std::move(*outcome_);
}

void CallerExecutor::run_until(const std::function<bool()>& reached) {
  while (run_one() && !reached()) {
  }
}

CallResult run_agreement(RankRuntime& actors, AgreeCall call) {
  CallerExecutor executor;
  call.executor = &executor;
  actors.agree(std::move(call), [&executor](CallResult outcome) { executor.deliver(std::move(outcome)); });
  return executor.run();
}

}  // namespace cairn
