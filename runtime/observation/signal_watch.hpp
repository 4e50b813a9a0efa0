// Records signals for polling. Internal.
#pragma once

#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <optional>
#include <vector>

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

  // Returns whether the installed handler of the signal is that of a watch.
  static bool is_watched(int number);

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

}  // namespace cairn
