// Taking note of signals, for whoever looks. Internal.
#pragma once

#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <optional>
#include <vector>

namespace cairn {

// While any watch of a signal lives in this process, its handler takes note of the signal and does nothing else: it counts, and keeps the
// time of the first that nobody has seen. The handler from before is put back with the last watch, unless somebody else has put in
// another one meanwhile. Thread-safe, each object on one thread.
class SignalWatch {
 public:
  // kInvalidArgument for a number that is no signal, or one that cannot be caught, as SIGKILL.
  explicit SignalWatch(std::vector<int> signals);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  // Whether some watch of this process has put in its handler, and that is in place.
  static bool is_watched(int number);

  struct Caught {
    int signal = 0;
    std::chrono::milliseconds ago{0};  // since it came
  };
  // One that has come since this watch began, or since the last call.
  std::optional<Caught> take();

 private:
  void release() noexcept;

  std::vector<int> signals_;  // those that are installed
  std::array<std::uint32_t, NSIG> seen_{};
};

}  // namespace cairn
