// Runs hooks on the thread that called `save` or `load`, while that thread is blocked there. An
// asynchronous save runs its first hooks on the thread that called `async_save`, and the others on
// the save's own thread.
#pragma once

#include <deque>
#include <functional>
#include <optional>

#include <cairn/actors/call.hpp>
#include <cairn/base/mutex.hpp>

namespace cairn {

class RankRuntime;

class CallerExecutor : public TrainerExecutor {
 public:
  void post(std::function<void()> task) override;

  // Ends the call. The runtime calls this once. No task may be posted after that.
  void deliver(CallResult outcome);

  // Runs tasks on the caller's thread until `deliver` has been called and no task is left.
  CallResult run();
  // Does the same, but returns earlier, after a task, if `reached` then returns true.
  void run_until(const std::function<bool()>& reached);

 private:
  bool run_one();

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> tasks_ CAIRN_GUARDED_BY(mutex_);
  std::optional<CallResult> outcome_ CAIRN_GUARDED_BY(mutex_);
};

// Runs an agreement on the calling thread, and returns how it ended. Sets `call.executor`.
CallResult run_agreement(RankRuntime& actors, AgreeCall call);

}  // namespace cairn
