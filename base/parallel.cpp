#include <cairn/base/parallel.hpp>

#include <algorithm>
#include <atomic>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

#include <cairn/base/mutex.hpp>
#include <cairn/base/signals_blocked.hpp>

namespace cairn {

void for_each_in_parallel(unsigned threads, std::size_t count, const std::function<void(std::size_t)>& task) {
  std::atomic<std::size_t> next{0};
  Mutex mutex;  // for `error`: local variables cannot be annotated
  std::exception_ptr error;
  std::size_t failed = count;  // the task that threw it
  const auto work = [&]() noexcept {
    for (std::size_t index = next++; index < count; index = next++) {
      try {
        task(index);
      } catch (...) {
        MutexLock lock(mutex);
        if (index < failed) error = std::current_exception();
        failed = std::min(failed, index);
        // No thread begins another task after the first error. All tasks before it have begun.
        next = count;
      }
    }
  };
  const std::size_t helpers_wanted = std::max<std::size_t>(1, std::min<std::size_t>(threads, count)) - 1;
  std::vector<std::thread> helpers;
  helpers.reserve(helpers_wanted);  // nothing may throw once a thread runs
  {
    const SignalsBlocked blocked;
    try {
      while (helpers.size() < helpers_wanted) helpers.emplace_back(work);
    } catch (const std::system_error&) {
      // The threads that could be started do all the work.
    }
  }
  work();
  for (std::thread& helper : helpers) helper.join();
  if (error) std::rethrow_exception(error);
}

}  // namespace cairn
