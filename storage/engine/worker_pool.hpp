// The threads of an engine. Threads start on first use, are kept between saves, and are joined when
// their owner is destroyed.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <cairn/base/mutex.hpp>

namespace cairn {

// Work that several threads do together.
class PoolWork {
 public:
  virtual ~PoolWork() = default;
  // Does a share of the work. Several threads of the pool call it at the same time, each at most
  // once. Returns when nothing is left for the calling thread to begin.
  virtual void run() noexcept = 0;
  // Makes every present and future `run` return soon. May be called from any thread, any number of
  // times.
  virtual void cancel() noexcept = 0;
  // Called once, by the last thread to leave `run`. The pool holds no lock during the call.
  virtual void finish() noexcept = 0;
};

// Thread-safe. Work runs in the order of the calls of `start`. The next work begins when a thread
// returns from `run` of the current work. The pool must not be destroyed by one of its own threads,
// that is, in `finish`.
class WorkerPool {
 public:
  // `threads` may be 0: `start` then does the whole work on the calling thread, so no work may wait
  // for other work. `name` is the name of the threads in debuggers, at most 15 characters.
  WorkerPool(unsigned threads, const std::string& name);
  // Cancels all started work and waits for it: `finish` is called for every work.
  ~WorkerPool();

  // Returns the number of threads that take part in one work; at least 1.
  unsigned threads() const { return threads_wanted_ == 0 ? 1 : threads_wanted_; }
  // Queues `work`. If the system cannot start all threads, fewer do the work. Throws kUnavailable
  // if it cannot start any.
  void start(std::shared_ptr<PoolWork> work);

 private:
  struct Entry {
    std::shared_ptr<PoolWork> work;
    unsigned running = 0;
    bool exhausted = false;  // a thread found nothing left to do
  };

  void start_threads() CAIRN_REQUIRES(mutex_);
  void serve() noexcept;

  const unsigned threads_wanted_;
  const std::string name_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::shared_ptr<Entry>> works_ CAIRN_GUARDED_BY(mutex_);
  bool stopping_ CAIRN_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
