#include <cairn/runtime/observation/signal_watch.hpp>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <ctime>
#include <exception>
#include <utility>

#include <cairn/base/error.hpp>
#include <cairn/base/log.hpp>
#include <cairn/base/signals_blocked.hpp>

namespace cairn {
namespace {

// Written by the signal handler, so the fields must be lock-free.
struct SignalNotes {
  std::atomic<std::uint32_t> count{0};
  std::atomic<std::int64_t> first_ns{0};  // arrival of the first signal that nobody has taken; 0: none
};
static_assert(std::atomic<std::int64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);

std::array<SignalNotes, NSIG> signal_notes;

struct WatchedSignal {
  int watches = 0;
  struct sigaction before {};
};

Mutex watched_mutex;
std::array<WatchedSignal, NSIG> watched_signals CAIRN_GUARDED_BY(watched_mutex);

std::int64_t monotonic_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

extern "C" void cairn_note_signal(int number) {
  // The code that the signal interrupts may be about to read errno.
  const int error = errno;
  SignalNotes& notes = signal_notes[static_cast<std::size_t>(number)];
  std::int64_t none = 0;
  // Keeps the earliest arrival, with which the grace period starts. The count comes last: `take`
  // reads the count first, and must then find the time.
  notes.first_ns.compare_exchange_strong(none, monotonic_ns());
  notes.count.fetch_add(1);
  errno = error;
}

// The signal handler only records the signal, so the thread polls. People do not notice a delay
// this short.
constexpr std::chrono::milliseconds kLookEvery{100};

// Returns whether the signal can be watched. Several worlds in one process may watch it; a
// program's own handler stays.
bool is_free(int number) {
  struct sigaction now {};
  if (::sigaction(number, nullptr, &now) != 0) return true;  // SignalWatch throws the error
  return (now.sa_flags & SA_SIGINFO) == 0 && (now.sa_handler == cairn_note_signal || now.sa_handler == SIG_DFL);
}

}  // namespace

SignalWatch::SignalWatch(const std::vector<int>& signals) {
  const MutexLock lock(watched_mutex);
  for (const int number : signals) {
    if (number <= 0 || number >= NSIG) {
      // No destructor runs for an object whose constructor throws.
      release();
      throw Error(ErrorCode::kInvalidArgument, "cannot wait for signal " + std::to_string(number) + ": there is no such signal");
    }
    WatchedSignal& watched = watched_signals[static_cast<std::size_t>(number)];
    if (watched.watches == 0) {
      struct sigaction action {};
      action.sa_handler = cairn_note_signal;
      // System calls of the trainer go on as if no signal had come.
      action.sa_flags = SA_RESTART;
      sigfillset(&action.sa_mask);
      // A time left from an earlier watch would date the next signal too early.
      signal_notes[static_cast<std::size_t>(number)].first_ns = 0;
      if (::sigaction(number, &action, &watched.before) != 0) {
        release();
        throw Error(ErrorCode::kInvalidArgument, "cannot wait for signal " + std::to_string(number) + ": it cannot be caught");
      }
    }
    ++watched.watches;
    signals_.push_back(number);
    seen_[static_cast<std::size_t>(number)] = signal_notes[static_cast<std::size_t>(number)].count;
  }
}

SignalWatch::~SignalWatch() {
  const MutexLock lock(watched_mutex);
  release();
}

void SignalWatch::release() noexcept CAIRN_REQUIRES(watched_mutex) {
  for (const int number : signals_) {
    WatchedSignal& watched = watched_signals[static_cast<std::size_t>(number)];
    if (--watched.watches > 0) continue;
    struct sigaction now {};
    // A handler that the program has installed since stays.
    if (::sigaction(number, nullptr, &now) == 0 && now.sa_handler == cairn_note_signal)
      ::sigaction(number, &watched.before, nullptr);
  }
  signals_.clear();
}

std::optional<SignalWatch::Caught> SignalWatch::take() {
  int earliest = 0;
  std::uint32_t count_of_earliest = 0;
  std::int64_t since = 0;
  for (const int number : signals_) {
    const SignalNotes& notes = signal_notes[static_cast<std::size_t>(number)];
    const std::uint32_t count = notes.count;
    if (count == seen_[static_cast<std::size_t>(number)]) continue;
    // Another watch of this process may have taken the time already; then `first` is 0.
    const std::int64_t first = notes.first_ns;
    if (earliest != 0 && first >= since) continue;
    earliest = number;
    count_of_earliest = count;
    since = first;
  }
  if (earliest == 0) return std::nullopt;
  seen_[static_cast<std::size_t>(earliest)] = count_of_earliest;
  // The next signal of this number has a grace period of its own.
  signal_notes[static_cast<std::size_t>(earliest)].first_ns = 0;
  const std::chrono::nanoseconds ago(since == 0 ? 0 : monotonic_ns() - since);
  return Caught{earliest, std::chrono::duration_cast<std::chrono::milliseconds>(ago)};
}

void SignalWatch::skip(int number) {
  const auto index = static_cast<std::size_t>(number);
  if (std::find(signals_.begin(), signals_.end(), number) == signals_.end()) return;
  seen_[index] = signal_notes[index].count;
  signal_notes[index].first_ns = 0;
}

TraceOnSignal::TraceOnSignal(int number, int rank, std::function<void()> write) {
  if (!is_free(number)) {
    write_log(LogLevel::kWarning, rank,
              "signal " + std::to_string(number) + " will not write traces: the program has a handler for it; choose another one");
    return;
  }
  signals_.emplace(std::vector<int>{number});
  thread_ = start_thread("cairn-trace", [this, rank, write = std::move(write)] { watch(rank, write); });
}

TraceOnSignal::~TraceOnSignal() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void TraceOnSignal::watch(int rank, const std::function<void()>& write) {
  MutexLock lock(mutex_);
  while (!changed_.wait_for(mutex_, kLookEvery, [this]() CAIRN_REQUIRES(mutex_) { return stopping_; })) {
    if (!signals_->take()) continue;
    lock.unlock();
    try {
      write();
    } catch (const std::exception& error) {
      // Only logged: a trace that cannot be written must not end the job.
      write_log(LogLevel::kWarning, rank, std::string("the trace that was asked for cannot be written: ") + error.what());
    }
    lock.lock();
  }
}

int signal_named(const std::string& name) {
  const std::string bare = name.rfind("SIG", 0) == 0 ? name.substr(3) : name;
  const std::pair<const char*, int> known[] = {{"USR1", SIGUSR1}, {"USR2", SIGUSR2}, {"HUP", SIGHUP}, {"QUIT", SIGQUIT}};
  for (const auto& [text, number] : known)
    if (bare == text) return number;
  const bool is_number = !bare.empty() && bare.size() <= 2 && bare.find_first_not_of("0123456789") == std::string::npos;
  if (!is_number)
    throw Error(ErrorCode::kInvalidArgument, "\"" + name + "\" is no signal: name USR1, USR2, HUP, QUIT or its number");
  return std::stoi(bare);
}

}  // namespace cairn
