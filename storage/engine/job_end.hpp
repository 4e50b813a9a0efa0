// What the jobs of the engines have in common: how they end. Internal to this folder.
#pragma once

#include <condition_variable>
#include <exception>
#include <mutex>
#include <utility>

#include <cairn/base/future.hpp>

namespace cairn {

// Leaves a task when another one of the job has failed; the error that counts is recorded already.
struct Stopped {};

// The future of a job, and whoever waits until nothing of the job is left. Thread-safe.
template <class Result>
class JobEnd {
 public:
  const Future<Result>& future() const { return promise_.future(); }

  bool reached() const {
    std::lock_guard lock(mutex_);
    return reached_;
  }
  void wait() const {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return reached_; });
  }

  // Once, when the job has let go of what it held; `error` is null if it has succeeded.
  void reach(const std::exception_ptr& error, Result result) noexcept {
    {
      std::lock_guard lock(mutex_);
      reached_ = true;
    }
    changed_.notify_all();
    try {
      if (error)
        promise_.set_exception(error);
      else
        promise_.set_value(std::move(result));
    } catch (...) {
      // Only a callback can have thrown: the future is fulfilled, and nobody is left to tell.
    }
  }

 private:
  Promise<Result> promise_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool reached_ = false;
};

}  // namespace cairn
