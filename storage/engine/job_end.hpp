// The end of an engine's job: its result and its release. Internal to this folder.
#pragma once

#include <exception>
#include <utility>

#include <cairn/base/future.hpp>
#include <cairn/base/mutex.hpp>

namespace cairn {

// Thrown to leave a task after another task of the job has failed. The job's error is already
// recorded.
struct Stopped {};

// The future of a job, and a way to wait until the job has released everything. Thread-safe.
template <class Result>
class JobEnd {
 public:
  const Future<Result>& future() const { return promise_.future(); }

  bool reached() const {
    MutexLock lock(mutex_);
    return reached_;
  }
  void wait() const {
    MutexLock lock(mutex_);
    while (!reached_) changed_.wait(mutex_);
  }

  // Fulfils the future. Call it once, when the job has released its resources. Null: no error.
  void reach(const std::exception_ptr& error, Result result) noexcept {
    {
      MutexLock lock(mutex_);
      reached_ = true;
    }
    changed_.notify_all();
    try {
      if (error)
        promise_.set_exception(error);
      else
        promise_.set_value(std::move(result));
    } catch (...) {
      // Only a callback can have thrown. The future is already fulfilled, so nobody can receive
      // this error.
    }
  }

 private:
  Promise<Result> promise_;
  mutable Mutex mutex_;
  mutable CondVar changed_;
  bool reached_ CAIRN_GUARDED_BY(mutex_) = false;
};

}  // namespace cairn
