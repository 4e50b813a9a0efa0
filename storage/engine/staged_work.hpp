// Work in stages: the tasks of one stage run side by side, and all are done before the next stage begins.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <mutex>

#include <cairn/storage/engine/worker_pool.hpp>

namespace cairn {

class StagedWork : public PoolWork {
 public:
  // `concurrency_max`: tasks that may run at once, whatever the number of threads.
  StagedWork(int stages, std::size_t concurrency_max);

  void run() noexcept final;
  void cancel() noexcept final;

 protected:
  // Called by one thread, when all tasks before are done: how many tasks the stage has.
  virtual std::size_t begin_stage(int stage) = 0;
  // Throwing ends the work: no further task begins, and long ones should ask `failed`.
  virtual void run_task(int stage, std::size_t index) = 0;
  // What a cancelled work ends with.
  virtual std::exception_ptr cancellation() const = 0;

  bool failed() const { return failed_; }
  void fail(std::exception_ptr error) noexcept;
  // In `finish`: the first exception, if there was one.
  std::exception_ptr error() const;

 private:
  bool next(int& stage, std::size_t& index);

  const int stages_;
  const std::size_t concurrency_max_;
  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int stage_ = -1;
  bool beginning_ = false;  // a thread is in `begin_stage`
  std::size_t count_ = 0;   // of the stage
  std::size_t begun_ = 0;
  std::size_t done_ = 0;
  std::exception_ptr error_;
};

}  // namespace cairn
