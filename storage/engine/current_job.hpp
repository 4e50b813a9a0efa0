// The one job that an engine has under way.
#pragma once

#include <memory>
#include <mutex>

#include <cairn/base/error.hpp>

namespace cairn {

// `Job`: ended(), cancel(), wait_until_ended(), all thread-safe. Thread-safe.
template <class Job>
class CurrentJob {
 public:
  // Takes the job that `start` returns, having started it, for the current one. Throws kPrecondition, in the words of `busy`, while the
  // one before has not ended.
  template <class Start>
  std::shared_ptr<Job> begin(const char* busy, Start start) {
    std::lock_guard lock(mutex_);
    if (const auto job = job_.lock(); job && !job->ended()) throw Error(ErrorCode::kPrecondition, busy);
    std::shared_ptr<Job> job = start();
    job_ = job;
    return job;
  }

  // Ends it as cancelled, and waits until it has ended.
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
