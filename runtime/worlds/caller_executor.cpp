#include <cairn/runtime/worlds/caller_executor.hpp>

#include <utility>

namespace cairn {

// `post` and `finish` notify under the lock, because the caller destroys this object as soon as it
// has seen the outcome.
void CallerExecutor::post(std::function<void()> task) {
  std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
  changed_.notify_one();
}

void CallerExecutor::finish(Outcome outcome) {
  std::lock_guard lock(mutex_);
  outcome_ = std::move(outcome);
  changed_.notify_one();
}

// Waits for a task and runs it. Returns false if there will be no more tasks.
bool CallerExecutor::run_one(std::unique_lock<std::mutex>& lock) {
  changed_.wait(lock, [this] { return !tasks_.empty() || outcome_.has_value(); });
  if (tasks_.empty()) return false;
  auto task = std::move(tasks_.front());
  tasks_.pop_front();
  lock.unlock();
  task();
  task = nullptr;  // destroys its captures before the next task runs
  lock.lock();
  return true;
}

Outcome CallerExecutor::run() {
  std::unique_lock lock(mutex_);
  while (run_one(lock)) {
  }
  return std::move(*outcome_);
}

void CallerExecutor::run_until(const std::function<bool()>& reached) {
  std::unique_lock lock(mutex_);
  while (run_one(lock) && !reached()) {
  }
}

}  // namespace cairn
