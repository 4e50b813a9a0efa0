// The end of an engine's job: the result, and the release of resources. Internal to this folder.
#pragma once

#include <exception>
#include <utility>

#include <cairn/base/future.hpp>
#include <cairn/base/mutex.hpp>

namespace cairn {

// Thrown to leave a task after another task of the job has failed. The job's error is already
// recorded.
struct Stopped {};

// Base of a job: its future, and a way to wait until the job has released everything. Thread-safe.
template <class Result>
class JobEnd {
 public:
  const Future<Result>& future() const { return promise_.future(); }

  bool ended() const {
    MutexLock lock(mutex_);
    return ended_;
  }
  void wait_until_ended() const {
    MutexLock lock(mutex_);
    while (!ended_) changed_.wait(mutex_);
  }

 protected:
  ~JobEnd() = default;

  // Fulfils the future. Call it once, when the job has released its resources. `error` may be null.
  void set_ended(const std::exception_ptr& error, Result result) noexcept {
    {
      MutexLock lock(mutex_);
      ended_ = true;
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
  bool ended_ CAIRN_GUARDED_BY(mutex_) = false;
};

}  // namespace cairn
