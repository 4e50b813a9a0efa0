#include <cairn/storage/engine/staged_work.hpp>

#include <algorithm>
#include <utility>

namespace cairn {

StagedWork::StagedWork(int stages, std::size_t concurrency_max)
    : stages_(stages), concurrency_max_(std::max<std::size_t>(1, concurrency_max)) {}

void StagedWork::fail(std::exception_ptr error) noexcept {
  {
    MutexLock lock(mutex_);
    // The first error counts. Later ones often follow from it.
    if (!error_) error_ = std::move(error);
    failed_ = true;
  }
  changed_.notify_all();
  wake();
}

std::exception_ptr StagedWork::error() const {
  MutexLock lock(mutex_);
  return error_;
}

void StagedWork::cancel() noexcept { fail(cancellation()); }

// Waits for a task. Returns false if there will be none.
bool StagedWork::next(int& stage, std::size_t& index) {
  MutexLock lock(mutex_);
  while (true) {
    changed_.wait(mutex_, [this]() CAIRN_REQUIRES(mutex_) {
      const bool task_free = begun_ < count_ && begun_ - done_ < concurrency_max_;
      return failed_ || (!beginning_ && (done_ == count_ || task_free));
    });
    if (failed_) return false;
    if (begun_ < count_) {
      stage = stage_;
      index = begun_++;
      return true;
    }
    if (stage_ + 1 >= stages_) return false;
    // One thread begins the stage, without the lock, because planning the tasks may take long. The
    // others wait.
    beginning_ = true;
    const int beginning = stage_ + 1;
    lock.unlock();
    const std::size_t count = begin_stage(beginning);
    lock.lock();
    beginning_ = false;
    stage_ = beginning;
    count_ = count;
    begun_ = done_ = 0;
    changed_.notify_all();
  }
}

// Runs on every thread of the pool at the same time, until no task is left to begin.
void StagedWork::run() noexcept {
  while (true) {
    try {
      int stage = 0;
      std::size_t index = 0;
      if (!next(stage, index)) return;
      run_task(stage, index);
    } catch (...) {
      fail(std::current_exception());
      return;
    }
    {
      MutexLock lock(mutex_);
      // A stage ends when its last task is done, which may be after all have begun.
      ++done_;
    }
    changed_.notify_all();
  }
}

}  // namespace cairn
