// Signals that interrupt system calls (EINTR). In the binaries that use this the linker replaces
// the system's functions with wrappers of the tests (--wrap, in tests/CMakeLists.txt).
#pragma once

#include <atomic>
#include <cerrno>
#include <map>
#include <mutex>
#include <string>

namespace cairn::testing {

// While one exists, every wrapped call is interrupted `times` before it is made.
class Interruptions {
 public:
  explicit Interruptions(int times) {
    std::lock_guard lock(mutex());
    interrupted().clear();
    bad_closes() = 0;
    per_call() = times;
  }
  ~Interruptions() { per_call() = 0; }
  // Interrupts every call of `name`, however often it is repeated.
  void always(const std::string& name) { never_made() = name; }
  // Returns how often calls of `name` were interrupted since the last one of these was made.
  static int count(const std::string& name) {
    std::lock_guard lock(mutex());
    return interrupted()[name];
  }

  // For the wrappers. If true, errno is EINTR.
  static bool interrupts(const std::string& name) {
    const int times = per_call();
    if (times == 0) return false;
    // By name, because a loop of two calls, such as poll and accept, would else never get one made.
    thread_local std::map<std::string, int> counts;
    int& so_far = counts[name];
    if (name != never_made() && so_far >= times) {
      so_far = 0;
      return false;
    }
    if (name != never_made()) ++so_far;
    std::lock_guard lock(mutex());
    ++interrupted()[name];
    errno = EINTR;
    return true;
  }
  static std::atomic<int>& bad_closes() {
    static std::atomic<int> count{0};
    return count;
  }
  static std::atomic<int>& per_call() {
    static std::atomic<int> times{0};
    return times;
  }

 private:
  static std::map<std::string, int>& interrupted() {
    static std::map<std::string, int> counts;
    return counts;
  }
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  static std::string& never_made() {
    static std::string name;
    return name;
  }
};

}  // namespace cairn::testing
