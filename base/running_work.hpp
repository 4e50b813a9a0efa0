// Records which threads work for which calls, and takes their stacks for traces. Internal.
//
//   thread of a hook or store operation           another thread
//
//   RunningWork work({call, …, "write_data"})
//     :   <------------ the signal -------------  take_stacks(call, …)
//     :   the handler walks the stack               :
//     :   ------------- a semaphore ----------->    returns the frames
//   ~RunningWork
//
// Until `install_stack_signal` has succeeded, there is no handler and nothing is registered.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/base/clock.hpp>
#include <cairn/base/failure.hpp>
#include <cairn/base/observer.hpp>

namespace cairn {

inline constexpr std::size_t kStackFramesMax = 64;  // per thread; further outer frames are left out
inline constexpr std::size_t kStacksMax = 8;        // per call of take_stacks

struct Work {
  const void* call = nullptr;  // identifies the call; null: the work belongs to no call
  Actor actor = Actor::kStorage;
  std::optional<Phase> phase{};
  const char* name = "";      // the name of the hook or store operation; must never be freed
  std::string_view object{};  // the object of a store operation; valid while the work runs
};

// Registers the work of this thread, and unblocks the stack signal on this thread, until the
// RunningWork is destroyed, which must happen on the same thread. If several are nested, the
// innermost counts. Work without a `call` is not registered.
class RunningWork {
 public:
  explicit RunningWork(const Work& work) noexcept;
  ~RunningWork();
  RunningWork(const RunningWork&) = delete;
  RunningWork& operator=(const RunningWork&) = delete;

  // Returns the work of this thread, so that other threads that do a part of this work can register
  // it as theirs. `call` is null if this thread has registered no work.
  static Work of_this_thread() noexcept;

 private:
  friend struct RunningThreads;
  const Work work_;
  pid_t thread_ = 0;  // 0: not registered
  MonotonicTime begin_;
  RunningWork* outer_ = nullptr;
  bool was_blocked_ = false;  // whether the signal was blocked on this thread
  bool was_taken_ = false;    // whether its stack was taken
};

struct StackFrame {
  std::string_view module;   // the path of the executable or library; never freed; "": unknown
  std::uint64_t offset = 0;  // of the instruction from the load address of `module`; its address if `module` is unknown
};

struct ThreadStack {
  Work work;  // its `object` is not valid: see the copy below
  std::string object;
  Duration running{0};             // the time since the work began
  std::vector<StackFrame> frames;  // innermost first
  std::string fault;               // the reason if there are no frames
};

// Installs the handler of signal `number`; 0 chooses an unused real-time signal. Returns "", or the
// reason why no stacks can be taken. After a success, later calls do nothing. The handler stays
// until the process ends, because the default action of a late signal would end the process.
std::string install_stack_signal(int number);

// Takes the stacks of the threads whose current work for `call` began at least `running_min` ago.
// Returns at most kStacksMax, the oldest work first, and never the same work twice. Waits at most
// `patience` for all threads together, but at least 10 ms for each, and 0.1 s more for a thread
// that is still walking its stack.
std::vector<ThreadStack> take_stacks(const void* call, Duration running_min, Duration patience = std::chrono::milliseconds(100));

}  // namespace cairn
