// Writes a rank's trace whenever its process gets a signal. Internal.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <thread>

#include <cairn/base/mutex.hpp>
#include <cairn/runtime/observation/signal_watch.hpp>

namespace cairn {

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
