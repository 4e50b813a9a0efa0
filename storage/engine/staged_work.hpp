// Work in stages. Tasks of one stage run in parallel; the next stage begins when all of them are
// done.
#pragma once

#include <atomic>
#include <cstddef>
#include <exception>

#include <cairn/base/mutex.hpp>
#include <cairn/storage/engine/worker_pool.hpp>

namespace cairn {

class StagedWork : public PoolWork {
 public:
  // `concurrency_max` limits the tasks that run at once, whatever the number of threads.
  StagedWork(int stages, std::size_t concurrency_max);

  void run() noexcept final;
  void cancel() noexcept final;

 protected:
  // Begins a stage. Called on one thread, after all earlier tasks. Returns the number of its tasks.
  virtual std::size_t begin_stage(int stage) = 0;
  // Runs a task. After an exception no further task begins. Long tasks should check `failed`.
  virtual void run_task(int stage, std::size_t index) = 0;
  // Returns the error with which cancelled work ends.
  virtual std::exception_ptr cancellation() const = 0;

  // Wakes tasks that wait, which then ask `failed`. Called after each failure, on any thread, maybe
  // after the end.
  virtual void wake() noexcept {}

  bool failed() const { return failed_; }
  void fail(std::exception_ptr error) noexcept;
  // Returns the first exception, or null. For use in `finish`.
  std::exception_ptr error() const;

 private:
  bool next(int& stage, std::size_t& index);

  const int stages_;
  const std::size_t concurrency_max_;
  std::atomic<bool> failed_{false};
  mutable Mutex mutex_;
  CondVar changed_;
  int stage_ CAIRN_GUARDED_BY(mutex_) = -1;
  bool beginning_ CAIRN_GUARDED_BY(mutex_) = false;  // a thread is in `begin_stage`
  std::size_t count_ CAIRN_GUARDED_BY(mutex_) = 0;   // tasks in the stage
  std::size_t begun_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::size_t done_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::exception_ptr error_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
