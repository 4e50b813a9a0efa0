#include <cairn/runtime/observation/trace_on_signal.hpp>

#include <chrono>
#include <csignal>
#include <exception>
#include <utility>

#include <cairn/base/error.hpp>
#include <cairn/base/log.hpp>
#include <cairn/base/signals_blocked.hpp>

namespace cairn {
namespace {

// The signal handler only records the signal, so the thread polls. People do not notice a delay
// this short.
constexpr std::chrono::milliseconds kLookEvery{100};

// Returns whether the signal can be watched. Several worlds in one process may watch it; a
// program's own handler stays.
bool is_free(int number) {
  struct sigaction now {};
  if (::sigaction(number, nullptr, &now) != 0) return true;  // SignalWatch throws the error
  return SignalWatch::is_watched(number) || ((now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == SIG_DFL);
}

}  // namespace

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
