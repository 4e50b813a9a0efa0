#include <cairn/base/mutex.hpp>

#include <chrono>
#include <stdexcept>
#include <thread>

#include <cairn/base/shared_mutex.hpp>
#include <cairn/tests/support/plain.hpp>

using namespace cairn;

namespace {

// Asks on a thread of its own, because a thread may not try a mutex that it holds.
bool is_free(Mutex& mutex) {
  bool found = false;
  std::thread([&] {
    if (!mutex.try_lock()) return;
    mutex.unlock();
    found = true;
  }).join();
  return found;
}

struct Shared {
  Mutex mutex;
  CondVar changed;
  int value CAIRN_GUARDED_BY(mutex) = 0;
};

}  // namespace

TEST_CASE("mutex: a lock holds it until its end, except between unlock and lock") {
  Mutex mutex;
  {
    MutexLock lock(mutex);
    CHECK(!is_free(mutex));
    lock.unlock();
    CHECK(is_free(mutex));
    lock.lock();
    CHECK(!is_free(mutex));
  }
  CHECK(is_free(mutex));
}

TEST_CASE("mutex: a lock that was released unlocks nothing at its end") {
  Mutex mutex;
  MutexLock outer(mutex);
  outer.unlock();
  {
    MutexLock inner(mutex);
    inner.unlock();
    outer.lock();
  }
  CHECK(!is_free(mutex));
}

TEST_CASE("mutex: a wait lets another thread in, and holds the mutex when it returns") {
  Shared shared;
  std::thread other;
  {
    MutexLock lock(shared.mutex);
    other = std::thread([&] {
      MutexLock inner(shared.mutex);
      shared.value = 1;
      shared.changed.notify_all();
    });
    shared.changed.wait(shared.mutex, [&]() CAIRN_REQUIRES(shared.mutex) { return shared.value == 1; });
    CHECK(!is_free(shared.mutex));
  }
  other.join();
}

TEST_CASE("mutex: a wait whose time is over says whether the predicate holds") {
  Shared shared;
  MutexLock lock(shared.mutex);
  CHECK(!shared.changed.wait_for(shared.mutex, std::chrono::milliseconds(0), [] { return false; }));
  CHECK(shared.changed.wait_for(shared.mutex, std::chrono::milliseconds(0), [] { return true; }));
  int asked = 0;
  CHECK(shared.changed.wait_for(shared.mutex, std::chrono::milliseconds(0), [&] { return ++asked == 2; }));
  CHECK(!is_free(shared.mutex));
}

TEST_CASE("mutex: a predicate that throws leaves the mutex to its lock") {
  Shared shared;
  {
    MutexLock lock(shared.mutex);
    CHECK_THROWS_AS(shared.changed.wait(shared.mutex, []() -> bool { throw std::runtime_error("no"); }), std::runtime_error);
    CHECK(!is_free(shared.mutex));
  }
  CHECK(is_free(shared.mutex));
}

TEST_CASE("mutex: shared locks of two threads admit each other") {
  SharedMutex mutex;
  bool was_there = false;
  SharedLock first(mutex);
  std::thread([&] {
    SharedLock second(mutex);
    was_there = true;
  }).join();
  CHECK(was_there);
}
