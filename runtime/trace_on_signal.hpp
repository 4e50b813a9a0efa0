// Writes the trace of a rank whenever its process gets a signal. Internal.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include <cairn/runtime/signal_watch.hpp>

namespace cairn {

// Of the signal that WorldOptions::trace_signal or CAIRN_TRACE_SIGNAL names. A handler that is there already is the program's: then
// nothing is done, but for a warning.
class TraceOnSignal {
 public:
  // `write` is called on a thread of this object's own, soon after each signal; several may count as one. What it throws is logged.
  // `number`: kInvalidArgument if it is none that can be caught.
  TraceOnSignal(int number, int rank, std::function<void()> write);
  ~TraceOnSignal();
  TraceOnSignal(const TraceOnSignal&) = delete;
  TraceOnSignal& operator=(const TraceOnSignal&) = delete;

 private:
  void watch(int rank, const std::function<void()>& write);

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::optional<SignalWatch> signals_;  // the thread's
  std::thread thread_;                  // none: the signal is the program's
};

// "USR2", "SIGUSR2" or "12" -> 12. kInvalidArgument for anything else.
int signal_named(const std::string& name);

}  // namespace cairn
