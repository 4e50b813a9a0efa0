// The running job of an engine, and its end: the result, and the release of resources. Internal to
// this folder.
#pragma once

#include <exception>
#include <memory>
#include <utility>

#include <cairn/base/error.hpp>
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

// Holds the one running job of an engine. `Job` must have ended(), cancel() and
// wait_until_ended(), all thread-safe. This class is thread-safe.
template <class Job>
class CurrentJob {
 public:
  // Calls `start`, which starts a job and returns it. That job becomes the current one. Throws
  // kPrecondition with the text `busy` while the previous job has not ended.
  template <class Start>
  std::shared_ptr<Job> begin(const char* busy, Start start) {
    MutexLock lock(mutex_);
    if (const auto job = job_.lock(); job && !job->ended()) throw Error(ErrorCode::kPrecondition, busy);
    std::shared_ptr<Job> job = start();
    job_ = job;
    return job;
  }

  // Cancels the current job and waits until it has ended.
  void stop() noexcept {
    MutexLock lock(mutex_);
    const std::shared_ptr<Job> job = job_.lock();
    lock.unlock();
    if (!job) return;
    job->cancel();
    job->wait_until_ended();
  }

 private:
  Mutex mutex_;
  std::weak_ptr<Job> job_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
