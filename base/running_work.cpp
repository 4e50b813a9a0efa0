#include <cairn/base/running_work.hpp>

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>
#include <unwind.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <ctime>
#include <fstream>
#include <map>
#include <new>
#include <set>

#include <cairn/base/mutex.hpp>

namespace cairn {
namespace {

constexpr std::chrono::milliseconds kPatienceMin{10};   // for each thread
constexpr std::chrono::milliseconds kEndPatience{100};  // for a handler that has begun

std::atomic<int> installed_signal{0};

// The one request that a handler may answer. A late signal finds another number, or none.
std::atomic<std::uintptr_t> request{0};

// Written by the handler that has claimed the request, then read by the thread that made it.
struct Answer {
  sem_t given;
  std::uintptr_t frames[kStackFramesMax];
  std::size_t count;
  bool below_handler;
};
Answer answer;

// The module of the unwinder, which also throws exceptions. While it does, it changes the stack
// above its own frames, so a stack that leads through it is not walked any further.
std::uintptr_t unwinder_begin = 0, unwinder_bytes = 0;

bool is_in_unwinder(std::uintptr_t address) { return address - unwinder_begin < unwinder_bytes; }

// Returns the instruction that the signal has interrupted; 0 if that is unknown.
std::uintptr_t interrupted_at(const void* context) {
  [[maybe_unused]] const auto& machine = static_cast<const ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  return static_cast<std::uintptr_t>(machine.gregs[REG_RIP]);
#elif defined(__aarch64__)
  return machine.pc;
#else
  return 0;
#endif
}

// Runs in the handler. In the frame that the signal has interrupted, the address is that of the
// next instruction; in others it is a return address, which may lie behind the function's end.
_Unwind_Reason_Code add_frame(_Unwind_Context* context, void*) {
  int is_interrupted = 0;
  const std::uintptr_t address = _Unwind_GetIPInfo(context, &is_interrupted);
  if (is_interrupted != 0 && !answer.below_handler) {
    answer.below_handler = true;
    answer.count = 0;  // leaves out the frames of the handler
  }
  if (answer.below_handler && is_in_unwinder(address)) return _URC_END_OF_STACK;
  if (address == 0 || answer.count == kStackFramesMax) return _URC_END_OF_STACK;
  answer.frames[answer.count++] = address - (is_interrupted != 0 ? 0 : 1);
  return _URC_NO_REASON;
}

// Async-signal-safe: since GCC 12 and glibc 2.35 the unwinder takes no lock to find a module. In a
// program that calls __register_frame, as some compilers at run time do, GCC 12's takes one.
void give_answer(int, siginfo_t* info, void* context) {
  const int error = errno;
  // Anyone may send the signal; only take_stacks sends this value.
  auto wanted = reinterpret_cast<std::uintptr_t>(info->si_value.sival_ptr);
  if (info->si_code != SI_QUEUE || info->si_pid != ::getpid() || wanted == 0) return;
  if (!request.compare_exchange_strong(wanted, 0)) return;
  answer.count = 0;
  answer.below_handler = false;
  if (!is_in_unwinder(interrupted_at(context))) _Unwind_Backtrace(add_frame, nullptr);
  ::sem_post(&answer.given);
  errno = error;
}

// A program may also read a signal that it blocks, with sigwait or signalfd.
bool is_free(int number) {
  struct sigaction now {};
  sigset_t blocked;
  return ::sigaction(number, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == SIG_DFL &&
         ::pthread_sigmask(SIG_SETMASK, nullptr, &blocked) == 0 && sigismember(&blocked, number) == 0;
}

bool is_ours(int number) {
  struct sigaction now {};
  return ::sigaction(number, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == give_answer;
}

pid_t this_thread() noexcept { return static_cast<pid_t>(::syscall(SYS_gettid)); }

bool wait_for_answer(std::chrono::nanoseconds time) {
  timespec end{};
  ::clock_gettime(CLOCK_MONOTONIC, &end);
  const std::int64_t nanoseconds = end.tv_nsec + time.count();
  end.tv_sec += nanoseconds / 1'000'000'000;
  end.tv_nsec = nanoseconds % 1'000'000'000;
  int result;
  do {
    result = ::sem_clockwait(&answer.given, CLOCK_MONOTONIC, &end);
  } while (result != 0 && errno == EINTR);
  return result == 0;
}

// Returns where a thread waits in the kernel, or "" if the kernel does not tell.
std::string wait_channel(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/wchan");
  std::string name;
  return std::getline(file, name) && name.size() > 1 ? "; it waits in the kernel, in " + name : "";
}

#ifdef DLFO_STRUCT_HAS_EH_DBASE  // glibc 2.35
// Returns whether the unwinder is another module than this code.
bool find_unwinder() {
  dl_find_object unwinder{}, own{};
  if (::_dl_find_object(::dlsym(RTLD_DEFAULT, "_Unwind_Backtrace"), &unwinder) != 0 ||
      ::_dl_find_object(reinterpret_cast<void*>(add_frame), &own) != 0 || own.dlfo_link_map == unwinder.dlfo_link_map)
    return false;
  unwinder_begin = reinterpret_cast<std::uintptr_t>(unwinder.dlfo_map_start);
  unwinder_bytes = reinterpret_cast<std::uintptr_t>(unwinder.dlfo_map_end) - unwinder_begin;
  return true;
}

StackFrame frame_of(std::uintptr_t address, std::set<std::string>& modules) {
  dl_find_object found{};
  // Unlike dladdr, this takes no lock, which a thread that hangs in dlopen may hold.
  if (::_dl_find_object(reinterpret_cast<void*>(address), &found) != 0) return {{}, address};
  std::string path = found.dlfo_link_map->l_name;
  if (path.empty()) {  // the executable
    char self[PATH_MAX] = {};
    path.assign(self, static_cast<std::size_t>(std::max<ssize_t>(0, ::readlink("/proc/self/exe", self, sizeof self))));
  }
  return {*modules.insert(std::move(path)).first, address - found.dlfo_link_map->l_addr};
}
#else
bool find_unwinder() { return false; }
StackFrame frame_of(std::uintptr_t address, std::set<std::string>&) { return {{}, address}; }
#endif

// Returns why this build can take no stacks, or "".
const char* unsupported() {
#if defined(__SANITIZE_THREAD__)
  return "the thread sanitizer delays signals";
#elif !defined(__x86_64__) && !defined(__aarch64__)
  return "where a signal has interrupted a thread is known on x86-64 and aarch64 only";
#elif !defined(DLFO_STRUCT_HAS_EH_DBASE)
  return "the C library is older than glibc 2.35, where finding a module takes a lock";
#else
  return "";
#endif
}

}  // namespace

struct RunningThreads {
  static RunningThreads& get() {
    static auto& threads = *new RunningThreads;  // never destroyed: threads may outlive static variables
    return threads;
  }

  void add(RunningWork& work) {
    work.thread_ = this_thread();
    const MutexLock lock(mutex_);
    RunningWork*& innermost = innermost_[work.thread_];
    work.outer_ = innermost;
    innermost = &work;
  }
  void remove(RunningWork& work) {
    const MutexLock lock(mutex_);
    const auto found = innermost_.find(work.thread_);
    // Not always the innermost: threads of a simulation switch between fibers.
    for (RunningWork** at = &found->second; *at != nullptr; at = &(*at)->outer_)
      if (*at == &work) {
        *at = work.outer_;
        break;
      }
    if (found->second == nullptr) innermost_.erase(found);
  }
  Work of(pid_t thread) {
    const MutexLock lock(mutex_);
    const auto found = innermost_.find(thread);
    return found == innermost_.end() ? Work{} : found->second->work_;
  }

  // Holds the lock while it waits, so that no registered thread can end meanwhile.
  std::vector<ThreadStack> take(const void* call, Duration running_min, Duration patience) {
    const MutexLock lock(mutex_);
    const MonotonicTime now = system_clock().now();
    std::vector<RunningWork*> works;
    for (const auto& [thread, work] : innermost_)
      if (work->work_.call == call && !work->was_taken_ && now - work->begin_ >= running_min) works.push_back(work);
    std::sort(works.begin(), works.end(), [](const auto* a, const auto* b) { return a->begin_ < b->begin_; });
    works.resize(std::min(works.size(), kStacksMax));
    std::vector<ThreadStack> stacks;
    for (RunningWork* work : works) {
      work->was_taken_ = true;
      ThreadStack stack{work->work_, std::string(work->work_.object), now - work->begin_, {}, {}};
      stack.work.object = {};
      stack.fault = ask(work->thread_, std::max<Duration>(kPatienceMin, now + patience - system_clock().now()));
      if (stack.fault.empty())
        for (std::size_t i = 0; i < answer.count; ++i) stack.frames.push_back(frame_of(answer.frames[i], modules_));
      if (stack.fault.empty() && stack.frames.empty()) stack.fault = "the thread is throwing an exception";
      stacks.push_back(std::move(stack));
    }
    return stacks;
  }

 private:
  // Returns why the thread has not answered, or "".
  std::string ask(pid_t thread, Duration patience) CAIRN_REQUIRES(mutex_) {
    const int number = installed_signal;
    if (is_stuck_) return "an earlier thread is still walking its stack";
    if (!is_ours(number)) return "the program has installed its own handler for signal " + std::to_string(number);
    std::uintptr_t own = ++requests_;
    siginfo_t info{};
    info.si_signo = number;
    info.si_code = SI_QUEUE;
    info.si_pid = ::getpid();
    info.si_uid = ::getuid();
    info.si_value.sival_ptr = reinterpret_cast<void*>(own);
    request = own;
    const bool is_sent = ::syscall(SYS_rt_tgsigqueueinfo, ::getpid(), thread, number, &info) == 0;
    const int error = errno;
    if (is_sent && wait_for_answer(patience)) return "";
    if (request.compare_exchange_strong(own, 0)) {
      if (!is_sent) return error == ESRCH ? "the thread has ended" : "the thread cannot be signalled";
      return "the thread did not answer" + wait_channel(thread);
    }
    // The handler has begun, and will write into `answer`.
    is_stuck_ = !wait_for_answer(kEndPatience);
    return is_stuck_ ? "the thread did not end to walk its stack" : "";
  }

  Mutex mutex_;
  std::map<pid_t, RunningWork*> innermost_ CAIRN_GUARDED_BY(mutex_);
  std::set<std::string> modules_ CAIRN_GUARDED_BY(mutex_);
  std::uintptr_t requests_ CAIRN_GUARDED_BY(mutex_) = 0;
  bool is_stuck_ CAIRN_GUARDED_BY(mutex_) = false;
};

RunningWork::RunningWork(const Work& work) noexcept : work_(work) {
  const int number = installed_signal;
  if (number == 0 || work.call == nullptr) return;
  begin_ = system_clock().now();
  try {
    RunningThreads::get().add(*this);
  } catch (const std::bad_alloc&) {
    thread_ = 0;
  }
  if (thread_ == 0 || outer_ != nullptr) return;
  // The library's own threads block all signals that a thread does not cause itself.
  sigset_t own, before;
  sigemptyset(&own);
  sigaddset(&own, number);
  was_blocked_ = ::pthread_sigmask(SIG_UNBLOCK, &own, &before) == 0 && sigismember(&before, number) == 1;
}

RunningWork::~RunningWork() {
  if (thread_ == 0) return;
  RunningThreads::get().remove(*this);
  if (!was_blocked_) return;
  sigset_t own;
  sigemptyset(&own);
  sigaddset(&own, installed_signal);
  ::pthread_sigmask(SIG_BLOCK, &own, nullptr);
}

Work RunningWork::of_this_thread() noexcept { return installed_signal == 0 ? Work{} : RunningThreads::get().of(this_thread()); }

std::string install_stack_signal(int number) {
  if (*unsupported() != 0) return unsupported();
  static Mutex mutex;  // one thread at a time decides
  const MutexLock lock(mutex);
  if (installed_signal != 0) return "";
  // Programs count up from SIGRTMIN, tools down from SIGRTMAX.
  for (int candidate = SIGRTMAX - 1; number == 0 && candidate > SIGRTMIN; --candidate)
    if (is_free(candidate)) number = candidate;
  if (number == 0) return "the program handles or blocks all real-time signals";
  if (!is_free(number)) return "the program handles or blocks signal " + std::to_string(number);
  // The first calls of these functions load and initialize, which a handler must not do.
  if (::sem_init(&answer.given, 0, 0) != 0 || ::sem_post(&answer.given) != 0 || ::sem_wait(&answer.given) != 0)
    return "there is no semaphore";
  _Unwind_Backtrace(add_frame, nullptr);
  if (!find_unwinder()) return "the unwinder is not a library of its own";
  struct sigaction own {};
  own.sa_sigaction = give_answer;
  own.sa_flags = SA_SIGINFO | SA_RESTART;
  sigfillset(&own.sa_mask);
  if (::sigaction(number, &own, nullptr) != 0) return "signal " + std::to_string(number) + " cannot be caught";
  installed_signal = number;
  return "";
}

std::vector<ThreadStack> take_stacks(const void* call, Duration running_min, Duration patience) {
  return installed_signal == 0 ? std::vector<ThreadStack>{} : RunningThreads::get().take(call, running_min, patience);
}

}  // namespace cairn
