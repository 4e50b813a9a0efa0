// Holds the one running job of an engine.
#pragma once

#include <memory>
#include <mutex>

#include <cairn/base/error.hpp>

namespace cairn {

// `Job` has ended(), cancel() and wait_until_ended(), all thread-safe. This class is thread-safe.
template <class Job>
class CurrentJob {
 public:
  // Calls `start`, which starts a job and returns it, and makes that the current job. Throws
  // kPrecondition with the text `busy` while the previous job has not ended.
  template <class Start>
  std::shared_ptr<Job> begin(const char* busy, Start start) {
    std::lock_guard lock(mutex_);
    if (const auto job = job_.lock(); job && !job->ended()) throw Error(ErrorCode::kPrecondition, busy);
    std::shared_ptr<Job> job = start();
    job_ = job;
    return job;
  }

  // Cancels the current job and waits until it has ended.
  void stop() noexcept {
    std::unique_lock lock(mutex_);
    const std::shared_ptr<Job> job = job_.lock();
    lock.unlock();
    if (!job) return;
    job->cancel();
    job->wait_until_ended();
  }

 private:
  std::mutex mutex_;
  std::weak_ptr<Job> job_;
};

}  // namespace cairn
