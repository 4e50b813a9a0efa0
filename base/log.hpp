// Cairn's log. Errors are exceptions, and messages between ranks are in the trace; the log holds
// everything else that people should know. Lines name files, checkpoints and ranks, and quote the
// texts of exceptions. They never contain checkpoint data or secrets.
//
//   cairn::set_log_level(cairn::LogLevel::kInfo);
//   cairn::set_log_sink([](const cairn::LogLine& line) { my_log(line.text); });
//
// By default, warnings and errors go to standard error, one line each, with time and level. The
// environment variable CAIRN_LOG sets another level: trace, debug, info, warning, error or off. Any
// other text counts as warning, and is reported once in the log. If CAIRN_LOG_PROCESS is set, each
// line names its process and host.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace cairn {

enum class LogLevel : std::uint8_t {
  kTrace = 1,
  kDebug,    // objects that were removed or recreated
  kInfo,     // progress of a save or load, one line per phase, from rank 0; other notes
  kWarning,  // something is wrong, but Cairn continues
  kError,    // something was lost
  kOff,      // logs nothing. Never the level of a line
};
const char* to_string(LogLevel level) noexcept;  // the names used in CAIRN_LOG

struct LogLine {
  LogLevel level = LogLevel::kInfo;
  int rank = -1;          // the rank that logs the line; -1: the whole process
  std::string_view text;  // without level and rank; usually one line. Borrowed for the call
};

// Receives every line at or above the log level. May be called on several threads at once. Cairn
// holds no lock during the call. A sink should return quickly. If a sink throws, the exception is
// dropped and the line goes to standard error. Lines that Cairn logs while the sink runs on the
// same thread also go to standard error.
using LogSink = std::function<void(const LogLine&)>;

// These settings apply to the whole process and are thread-safe. A null sink restores standard
// error. A replaced sink may still be running when `set_log_sink` returns.
void set_log_sink(LogSink sink);
// Overrides CAIRN_LOG from now on.
void set_log_level(LogLevel level) noexcept;
LogLevel log_level() noexcept;

// For Cairn itself, and for sinks and planners that log through Cairn. `write_log` drops a line
// that it cannot write.
bool is_logged(LogLevel level) noexcept;
bool is_logged_to_stderr() noexcept;  // true unless a sink is set
void write_log(LogLevel level, int rank, std::string_view text) noexcept;

}  // namespace cairn
