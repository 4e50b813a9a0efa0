// Runs hooks on the thread that called `save` or `load`, while it is blocked there; those of an asynchronous save on its own.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>

#include <cairn/actors/rank_runtime.hpp>
#include <cairn/actors/trainer_executor.hpp>

namespace cairn {

class CallerExecutor : public TrainerExecutor {
 public:
  void post(std::function<void()> task) override;

  // From the runtime, once: no task is posted after it.
  void finish(Outcome outcome);

  // On the caller's thread: runs tasks in order until `finish` was called and no task is left.
  Outcome run();
  // The same, but returns after the task that makes `reached` true, if there is one.
  void run_until(const std::function<bool()>& reached);

 private:
  bool run_one(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  std::optional<Outcome> outcome_;
};

}  // namespace cairn
