// The engine's threads: started when first needed, kept between saves, joined when their owner goes.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace cairn {

// Work that several threads do together.
class PoolWork {
 public:
  virtual ~PoolWork() = default;
  // Called by up to as many threads at once as the pool has. Returns once there is nothing left to do for any thread.
  virtual void run() noexcept = 0;
  // Makes every `run`, now and later, return soon. Called from any thread, any number of times.
  virtual void cancel() noexcept = 0;
  // Called once, by the last thread to leave `run`; no lock of the pool is held.
  virtual void finish() noexcept = 0;
};

// Thread-safe. Works are done in the order given; the next one begins when a thread finds nothing left to do in the one before.
// Must not be destroyed by one of its own threads, that is, not in `finish`.
class WorkerPool {
 public:
  // `threads`: 0 for none; then `start` does the whole work on its caller's thread, and a work must not wait for another.
  // `name`: of the threads, at most 15 characters, as debuggers show them.
  WorkerPool(unsigned threads, std::string name);
  // Cancels what is under way, and waits for it: every work that was started gets its `finish`.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // That take part in one work: at least 1.
  unsigned threads() const { return threads_wanted_ == 0 ? 1 : threads_wanted_; }
  // Throws kUnavailable if the system gives no thread at all; fewer than wanted will do.
  void start(std::shared_ptr<PoolWork> work);

 private:
  struct Entry {
    std::shared_ptr<PoolWork> work;
    unsigned running = 0;
    bool exhausted = false;  // some thread has left it
  };

  void start_threads();
  void serve() noexcept;

  const unsigned threads_wanted_;
  const std::string name_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Entry>> works_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

// Calls `task(0)` … `task(count - 1)` on up to `threads` threads, the caller's among them. The first exception ends it and is
// thrown, once no task runs any more.
void for_each_in_parallel(unsigned threads, std::size_t count, const std::function<void(std::size_t)>& task);

}  // namespace cairn
