// Records signals for polling, and writes traces when one comes. Internal.
#pragma once

#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <cairn/base/mutex.hpp>

namespace cairn {

// While a watch of a signal exists, the signal's handler only counts arrivals, and records the time
// of the first arrival that no watch has taken. The destructor of the signal's last watch restores
// the previous handler, unless another handler has been installed meanwhile. Different threads may
// use different watches; each watch belongs to one thread.
class SignalWatch {
 public:
  // Throws kInvalidArgument for a number that is not a signal, or a signal that cannot be caught,
  // such as SIGKILL.
  explicit SignalWatch(const std::vector<int>& signals);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  struct Caught {
    int signal = 0;
    std::chrono::milliseconds ago{0};  // time since it arrived; 0 if another watch has taken it already
  };
  // Returns the first signal that arrived after this watch was created and that `take` has not
  // returned yet. Later calls return the others.
  std::optional<Caught> take();
  // Treats all arrivals of this signal so far as returned by `take`. Does nothing if the signal is
  // not watched.
  void skip(int number);

 private:
  void release() noexcept;

  std::vector<int> signals_;  // the signals for which this watch has installed the handler
  std::array<std::uint32_t, NSIG> seen_{};
};

// Watches the signal that WorldOptions::trace_signal or CAIRN_TRACE_SIGNAL names. If the program
// handles or ignores that signal already, logs a warning and does nothing else.
class TraceOnSignal {
 public:
  // Calls `write` on a thread of its own, soon after each signal; several signals may count as one.
  // Logs what `write` throws. Throws kInvalidArgument if `number` is not a signal that can be
  // caught.
  TraceOnSignal(int number, int rank, std::function<void()> write);
  ~TraceOnSignal();

 private:
  void watch(int rank, const std::function<void()>& write);

  Mutex mutex_;
  CondVar changed_;
  bool stopping_ CAIRN_GUARDED_BY(mutex_) = false;
  std::optional<SignalWatch> signals_;  // used by the thread only
  std::thread thread_;                  // absent if the program handles the signal
};

// Returns the number of a signal: 12 for "USR2", "SIGUSR2" or "12". Throws kInvalidArgument for an
// unknown name.
int signal_named(const std::string& name);

}  // namespace cairn
