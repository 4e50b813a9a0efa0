#include <cairn/storage/engine/worker_pool.hpp>

#include <algorithm>
#include <system_error>
#include <utility>

#include <cairn/base/error.hpp>
#include <cairn/base/signals_blocked.hpp>

namespace cairn {
namespace {

// Limit per pool. A larger number is surely a mistake, such as a -1.
constexpr unsigned kThreadsMax = 1024;

}  // namespace

// Linux keeps 15 bytes of a thread's name and refuses longer ones.
WorkerPool::WorkerPool(unsigned threads, const std::string& name) : threads_wanted_(threads), name_(name.substr(0, 15)) {
  if (threads > kThreadsMax)
    throw Error(ErrorCode::kInvalidArgument,
                "threads (" + std::to_string(threads) + ") must be at most " + std::to_string(kThreadsMax));
}

WorkerPool::~WorkerPool() {
  std::vector<std::shared_ptr<PoolWork>> works;  // keeps works alive that a thread finishes at this moment
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    for (const auto& entry : works_) works.push_back(entry->work);
  }
  for (const auto& work : works) work->cancel();
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::start(std::shared_ptr<PoolWork> work) {
  if (threads_wanted_ == 0) {
    work->run();
    work->finish();
    return;
  }
  auto entry = std::make_shared<Entry>();
  entry->work = std::move(work);
  {
    MutexLock lock(mutex_);
    // On first use, because many readers and writers are made and never used.
    if (threads_.size() < threads_wanted_) start_threads();
    works_.push_back(std::move(entry));
  }
  changed_.notify_all();
}

void WorkerPool::start_threads() {
  threads_.reserve(threads_wanted_);  // nothing may throw once a thread runs
  try {
    while (threads_.size() < threads_wanted_) threads_.push_back(start_thread(name_.c_str(), [this] { serve(); }));
  } catch (const std::system_error& error) {
    // Fewer threads than wanted are slower, but enough.
    if (threads_.empty())
      throw Error(ErrorCode::kUnavailable, std::string("cannot start a thread for input and output: ") + error.what() +
                                               ": raise the limit of threads or processes");
  }
}

void WorkerPool::serve() noexcept {
  MutexLock lock(mutex_);
  while (true) {
    while (!stopping_ && works_.empty()) changed_.wait(mutex_);
    if (works_.empty()) return;
    std::shared_ptr<Entry> entry = works_.front();
    ++entry->running;
    lock.unlock();
    entry->work->run();
    lock.lock();
    // `run` returns when the work has no more tasks to begin. Other threads may still run its last
    // ones.
    if (!entry->exhausted) {
      entry->exhausted = true;
      works_.erase(std::find(works_.begin(), works_.end(), entry));
    }
    const bool last = --entry->running == 0;
    lock.unlock();
    // Only when no thread runs a task of it.
    if (last) entry->work->finish();
    entry.reset();  // may destroy the work, so not under the lock
    lock.lock();
  }
}

}  // namespace cairn
