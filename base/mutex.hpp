// std::mutex and std::condition_variable with annotations for Clang's thread-safety analysis. The
// types of libstdc++ have no annotations.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include <cairn/base/thread_annotations.hpp>

namespace cairn {

class CAIRN_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() CAIRN_ACQUIRE() { mutex_.lock(); }
  void unlock() CAIRN_RELEASE() { mutex_.unlock(); }
  bool try_lock() CAIRN_TRY_ACQUIRE(true) { return mutex_.try_lock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

// Holds a mutex for the lifetime of the MutexLock, except between `unlock` and `lock`.
class CAIRN_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) CAIRN_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() CAIRN_RELEASE() {
    if (is_held_) mutex_.unlock();
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void unlock() CAIRN_RELEASE() {
    mutex_.unlock();
    is_held_ = false;
  }
  void lock() CAIRN_ACQUIRE() {
    mutex_.lock();
    is_held_ = true;
  }

 private:
  Mutex& mutex_;
  bool is_held_ = true;
};

// The waits release the mutex while they wait, and hold it again when they return. A predicate that
// reads guarded members needs an annotation: `[this]() CAIRN_REQUIRES(mutex_) { return ended_; }`.
class CondVar {
 public:
  void notify_one() noexcept { changed_.notify_one(); }
  void notify_all() noexcept { changed_.notify_all(); }

  // Every wait without a predicate may return early (a spurious wakeup).
  void wait(Mutex& mutex) CAIRN_REQUIRES(mutex) {
    std::unique_lock<std::mutex> held(mutex.mutex_, std::adopt_lock);
    changed_.wait(held);
    held.release();  // leaves the mutex locked; the caller unlocks it
  }
  // Returns whether the wait ended before `end`.
  bool wait_until(Mutex& mutex, std::chrono::steady_clock::time_point end) CAIRN_REQUIRES(mutex) {
    std::unique_lock<std::mutex> held(mutex.mutex_, std::adopt_lock);
    const bool is_early = changed_.wait_until(held, end) == std::cv_status::no_timeout;
    held.release();
    return is_early;
  }
  bool wait_for(Mutex& mutex, std::chrono::nanoseconds time) CAIRN_REQUIRES(mutex) {
    return wait_until(mutex, std::chrono::steady_clock::now() + time);
  }

  // Not analysed: the analysis cannot tell that `mutex` is the mutex named in the predicate's
  // annotation.
  template <class Predicate>
  void wait(Mutex& mutex, Predicate is_true) CAIRN_REQUIRES(mutex) CAIRN_NO_THREAD_SAFETY_ANALYSIS {
    while (!is_true()) wait(mutex);
  }
  // Returns whether the predicate holds.
  template <class Predicate>
  bool wait_for(Mutex& mutex, std::chrono::nanoseconds time, Predicate is_true)
      CAIRN_REQUIRES(mutex) CAIRN_NO_THREAD_SAFETY_ANALYSIS {
    const auto end = std::chrono::steady_clock::now() + time;
    while (!is_true())
      if (!wait_until(mutex, end)) return is_true();
    return true;
  }

 private:
  std::condition_variable changed_;
};

}  // namespace cairn
