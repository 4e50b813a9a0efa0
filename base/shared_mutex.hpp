// std::shared_mutex with annotations for Clang's thread-safety analysis.
#pragma once

#include <shared_mutex>

#include <cairn/base/thread_annotations.hpp>

namespace cairn {

class CAIRN_CAPABILITY("mutex") SharedMutex {
 public:
  SharedMutex() = default;
  SharedMutex(const SharedMutex&) = delete;
  SharedMutex& operator=(const SharedMutex&) = delete;

  void lock() CAIRN_ACQUIRE() { mutex_.lock(); }
  void unlock() CAIRN_RELEASE() { mutex_.unlock(); }
  void lock_shared() CAIRN_ACQUIRE_SHARED() { mutex_.lock_shared(); }
  void unlock_shared() CAIRN_RELEASE_SHARED() { mutex_.unlock_shared(); }

 private:
  std::shared_mutex mutex_;
};

// Holds a shared mutex exclusively: the holder may change the members that the mutex guards.
class CAIRN_SCOPED_CAPABILITY ExclusiveLock {
 public:
  explicit ExclusiveLock(SharedMutex& mutex) CAIRN_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~ExclusiveLock() CAIRN_RELEASE() { mutex_.unlock(); }
  ExclusiveLock(const ExclusiveLock&) = delete;
  ExclusiveLock& operator=(const ExclusiveLock&) = delete;

 private:
  SharedMutex& mutex_;
};

// Holds a shared mutex together with other readers: the holder may read the guarded members.
class CAIRN_SCOPED_CAPABILITY SharedLock {
 public:
  explicit SharedLock(SharedMutex& mutex) CAIRN_ACQUIRE_SHARED(mutex) : mutex_(mutex) { mutex_.lock_shared(); }
  ~SharedLock() CAIRN_RELEASE() { mutex_.unlock_shared(); }
  SharedLock(const SharedLock&) = delete;
  SharedLock& operator=(const SharedLock&) = delete;

 private:
  SharedMutex& mutex_;
};

}  // namespace cairn
