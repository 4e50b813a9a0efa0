// A job of an engine, and the threads that do it. Internal to this folder.
#pragma once

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include <cairn/base/error.hpp>
#include <cairn/base/future.hpp>
#include <cairn/base/mutex.hpp>
#include <cairn/base/signals_blocked.hpp>

namespace cairn {

// Thrown to leave a task after another task of the job has failed. The job's error is already
// recorded.
struct Stopped {};

// Base of a job: its future, and its first error. Thread-safe.
template <class Result>
class Job {
 public:
  // `what` begins the error text of a cancelled job.
  explicit Job(std::string what) : what_(std::move(what)) {}
  virtual ~Job() = default;

  // Does the whole job on up to `threads` threads, among them the caller's, and fulfils the future.
  // Call it once.
  virtual void run(unsigned threads) noexcept = 0;
  // Makes `run` return soon. May be called from any thread, any number of times.
  void cancel() noexcept { fail(std::make_exception_ptr(Error(ErrorCode::kCancelled, what_ + " was cancelled"))); }
  const Future<Result>& future() const { return promise_.future(); }

 protected:
  // After an exception no further task begins. Long tasks should check this.
  bool failed() const { return failed_; }
  void stop_if_failed() const {
    if (failed_) throw Stopped();
  }
  // The first error counts. Later ones often follow from it.
  virtual void fail(std::exception_ptr error) noexcept {
    {
      MutexLock lock(mutex_);
      if (!error_) error_ = std::move(error);
      failed_ = true;
    }
    changed_.notify_all();
  }
  // Returns the first error, or null.
  std::exception_ptr error() const {
    MutexLock lock(mutex_);
    return error_;
  }

  // Fulfils the future. Call it once, when the job has released its resources. `error` may be null.
  void set_ended(const std::exception_ptr& error, Result result) noexcept {
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

  mutable Mutex mutex_;
  CondVar changed_;  // also notified of a failure

 private:
  const std::string what_;
  Promise<Result> promise_;
  std::atomic<bool> failed_{false};  // set under the lock; read without it to stop early
  std::exception_ptr error_ CAIRN_GUARDED_BY(mutex_);
};

// Runs one job of an engine at a time, on a thread that starts the others. Thread-safe. Must not be
// destroyed in a callback of a job's future.
template <class Job>
class CurrentJob {
 public:
  // `threads` may be 0: `begin` then does the whole job on the calling thread. `name` is the name
  // of the threads in debuggers, at most 15 characters.
  CurrentJob(unsigned threads, const char* name) : threads_(threads), name_(name) {
    constexpr unsigned kThreadsMax = 1024;  // a larger number is surely a mistake, such as a -1
    if (threads > kThreadsMax)
      throw Error(ErrorCode::kInvalidArgument,
                  "threads (" + std::to_string(threads) + ") must be at most " + std::to_string(kThreadsMax));
  }
  // Cancels the current job, and waits until its thread has ended.
  ~CurrentJob() {
    stop();
    if (thread_.joinable()) thread_.join();
  }

  // Returns the number of threads that take part in one job; at least 1.
  unsigned threads() const { return std::max(1u, threads_); }

  // Starts the job that `make` returns, and returns its future. If the system cannot start all
  // threads, fewer do the job. Throws kUnavailable if it cannot start any. Throws kPrecondition
  // with the text `busy` while the previous job has not ended.
  template <class Make>
  auto begin(const char* busy, Make make) {
    MutexLock lock(mutex_);
    if (const auto job = job_.lock(); job && !job->future().ready()) throw Error(ErrorCode::kPrecondition, busy);
    const std::shared_ptr<Job> job = make();
    if (threads_ == 0) {
      job->run(1);
      return Future(job->future());
    }
    const auto before = std::make_shared<std::thread>(std::move(thread_));
    try {
      thread_ = start_thread(name_, [made = job, threads = threads_, before]() mutable {
        made->run(threads);
        made.reset();
        if (before->joinable()) before->join();  // it may still be in a callback
      });
    } catch (const std::exception& error) {
      thread_ = std::move(*before);
      throw Error(ErrorCode::kUnavailable, std::string("cannot start a thread for input and output: ") + error.what() +
                                               ": raise the limit of threads or processes");
    }
    job_ = job;
    return Future(job->future());
  }

  // Cancels the current job and waits until it has ended.
  void stop() noexcept {
    MutexLock lock(mutex_);
    const std::shared_ptr<Job> job = job_.lock();
    lock.unlock();
    if (!job) return;
    job->cancel();
    try {
      job->future().get();
    } catch (...) {  // the job's error
    }
  }

 private:
  const unsigned threads_;
  const char* const name_;
  Mutex mutex_;
  std::weak_ptr<Job> job_ CAIRN_GUARDED_BY(mutex_);
  std::thread thread_ CAIRN_GUARDED_BY(mutex_);  // joins that of the job before
};

}  // namespace cairn
