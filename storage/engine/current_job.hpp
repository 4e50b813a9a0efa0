// Holds the one running job of an engine.
#pragma once

#include <memory>

#include <cairn/base/error.hpp>
#include <cairn/base/mutex.hpp>

namespace cairn {

// `Job` must have ended(), cancel() and wait_until_ended(), all thread-safe. This class is
// thread-safe.
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
