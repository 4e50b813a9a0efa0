#include <cairn/base/log.hpp>

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include <cairn/base/mutex.hpp>
#include <cairn/base/process_name.hpp>
#include <cairn/base/status_line.hpp>

namespace cairn {
namespace {

constexpr const char* kVariable = "CAIRN_LOG";
constexpr std::pair<LogLevel, const char*> kLevels[] = {{LogLevel::kTrace, "trace"}, {LogLevel::kDebug, "debug"},
                                                        {LogLevel::kInfo, "info"},   {LogLevel::kWarning, "warning"},
                                                        {LogLevel::kError, "error"}, {LogLevel::kOff, "off"}};

std::optional<LogLevel> level_named(std::string_view name) {
  for (const auto& [level, its_name] : kLevels)
    if (name == its_name) return level;
  return std::nullopt;
}

// Never destroyed, because destructors of static objects may log.
struct Log {
  std::atomic<LogLevel> level{LogLevel::kWarning};
  Mutex mutex;
  std::shared_ptr<const LogSink> sink CAIRN_GUARDED_BY(mutex);  // null: standard error

  Mutex terminal;                                 // held while standard error is written
  std::string status CAIRN_GUARDED_BY(terminal);  // the status line now drawn there

  // Callers keep the sink alive and call it without the lock, so that a sink may log or be replaced
  // while it runs.
  std::shared_ptr<const LogSink> current_sink() {
    MutexLock lock(mutex);
    return sink;
  }
};

Log& the_log() {
  static Log& log = *new Log;
  return log;
}

// Returns the terminal of the status line: the one that CAIRN_STATUS_TERMINAL names, or else
// standard error. cairn-launch, to whose pipes ranks write, sets the variable.
int status_terminal() noexcept {
  static const int terminal = [] {
    const char* const path = std::getenv("CAIRN_STATUS_TERMINAL");
    const int opened = path == nullptr ? -1 : ::open(path, O_WRONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    return opened < 0 ? STDERR_FILENO : opened;
  }();
  return terminal;
}

bool is_status_on_stderr() noexcept { return status_terminal() == STDERR_FILENO; }

// Writes without buffering, and drops what it cannot write; never throws.
void write_unbuffered(int descriptor, std::string_view text) noexcept {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

// Writes to the terminal of the status line, unless that would block.
void write_to_terminal(std::string_view text) noexcept {
  // A write to a terminal that Ctrl-S has stopped blocks until Ctrl-Q. A status line may not stop a
  // save.
  pollfd terminal{status_terminal(), POLLOUT, 0};
  if (::poll(&terminal, 1, 0) > 0 && (terminal.revents & POLLOUT) != 0) write_unbuffered(terminal.fd, text);
}

// "[2026-01-31 12:00:00.123] [cairn] [warning] rank 3: text", in local time.
std::string as_text(const LogLine& line) {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  std::tm parts{};
  ::localtime_r(&seconds, &parts);
  char time[32] = "";
  std::strftime(time, sizeof(time), "[%Y-%m-%d %H:%M:%S", &parts);
  char fraction[8] = "";
  std::snprintf(fraction, sizeof(fraction), ".%03d] ", static_cast<int>(milliseconds));
  std::string text = std::string(time) + fraction + "[cairn] [" + to_string(line.level) + "] ";
  static const bool names_process = std::getenv("CAIRN_LOG_PROCESS") != nullptr;
  if (line.rank >= 0) text += "rank " + std::to_string(line.rank);
  if (names_process) text += std::string(line.rank >= 0 ? ", " : "") + process_name();
  if (line.rank >= 0 || names_process) text += ": ";
  return text.append(line.text).append("\n");
}

// The status line is below the line of the cursor, and the cursor stays where it is: so others may
// write to the terminal, and a terminal that becomes narrower wraps only what is below the cursor.
// To draw: makes room for a line, saves the cursor, erases what is below it, and moves down.
constexpr std::string_view kDraw = "\033D\033[A\0337\033[J\033[B\r";
constexpr std::string_view kDrawn = "\0338";  // restores the cursor
constexpr std::string_view kErase = "\033[J";

void write_to_stderr(Log& log, const LogLine& line) {
  const std::string text = as_text(line);
  MutexLock lock(log.terminal);
  // Removes the status line, and draws it again below the new line.
  const bool is_below = !log.status.empty() && is_status_on_stderr();
  if (is_below) write_to_terminal(kErase);
  write_unbuffered(STDERR_FILENO, text);
  if (is_below) write_to_terminal(log.status);
}

// Set while this thread runs a sink. Lines that the sink causes bypass the sink, which could
// otherwise call itself for ever.
thread_local bool within_sink = false;

void write(Log& log, const LogLine& line) noexcept {
  try {
    const auto sink = within_sink ? nullptr : log.current_sink();
    if (!sink) return write_to_stderr(log, line);
    within_sink = true;
    try {
      (*sink)(line);
      within_sink = false;
    } catch (...) {
      within_sink = false;
      write_to_stderr(log, line);
    }
  } catch (...) {  // out of memory: the line is lost
  }
}

// Reads the environment once. A warning about it goes to the same place as the first line.
Log& configured_log() noexcept {
  Log& log = the_log();
  static std::once_flag read;
  static std::atomic<bool> is_wrong{false};
  std::call_once(read, [&] {
    const char* const value = std::getenv(kVariable);
    if (value == nullptr || *value == '\0') return;
    const auto level = level_named(value);
    is_wrong = !level;
    log.level = level.value_or(LogLevel::kWarning);
  });
  // Outside of call_once: the sink that receives this line may log, and would wait for itself.
  if (is_wrong.exchange(false))
    write(log, {LogLevel::kWarning, -1,
                "CAIRN_LOG names no level: set it to trace, debug, info, warning, error or off; it counts as warning"});
  return log;
}

}  // namespace

const char* to_string(LogLevel level) noexcept {
  for (const auto& [known, name] : kLevels)
    if (level == known) return name;
  return "unknown";
}

void set_log_sink(LogSink sink) {
  // Allocated before the lock. After the swap it holds the old sink, which is destroyed when the
  // lock is released: its destructor is the user's code.
  auto made = sink ? std::make_shared<const LogSink>(std::move(sink)) : nullptr;
  Log& log = the_log();
  MutexLock lock(log.mutex);
  std::swap(log.sink, made);
}

void set_log_level(LogLevel level) noexcept { configured_log().level = level; }
LogLevel log_level() noexcept { return configured_log().level; }
bool is_logged(LogLevel level) noexcept { return level != LogLevel::kOff && level >= log_level(); }

bool is_logged_to_stderr() noexcept { return the_log().current_sink() == nullptr; }

void write_log(LogLevel level, int rank, std::string_view text) noexcept {
  if (is_logged(level)) write(the_log(), {level, rank, text});
}

// --- the line at the bottom ----------------------------------------------------------------------

bool has_status_terminal() noexcept {
  if (::isatty(status_terminal()) != 1) return false;
  const char* const kind = std::getenv("TERM");
  return kind == nullptr || std::string_view(kind) != "dumb";
}

int status_columns() noexcept {
  // Terminals behind a serial line or in an editor may not know their width.
  constexpr int kUsual = 80;
  constexpr int kLeast = 20;
  winsize size{};
  if (::ioctl(status_terminal(), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kUsual;
  return std::max<int>(size.ws_col, kLeast);
}

void draw_status(std::string_view text) noexcept {
  Log& log = the_log();
  try {
    MutexLock lock(log.terminal);
    // As a line, cairn-launch draws it itself.
    if (is_status_on_stderr())
      log.status.assign(kDraw).append(text).append(kDrawn);
    else
      log.status.assign(text).append("\n");
    write_to_terminal(log.status);
  } catch (...) {  // out of memory: the next call draws it
  }
}

void clear_status() noexcept {
  Log& log = the_log();
  MutexLock lock(log.terminal);
  if (log.status.empty()) return;
  log.status.clear();
  write_to_terminal(is_status_on_stderr() ? kErase : "\n");
}

}  // namespace cairn
