// What Cairn has to say to people when nobody asked: errors are exceptions, and what the ranks say to each other is in the trace. Lines
// name files, checkpoints and ranks, and quote the texts of exceptions; never what a checkpoint holds, and no secret.
//
//   cairn::set_log_level(cairn::LogLevel::kInfo);
//   cairn::set_log_sink([](const cairn::LogLine& line) { my_log(line.text); });
//
// By default warnings and errors go to standard error, a line each with time and level. The environment variable CAIRN_LOG sets another
// level: trace, debug, info, warning, error or off; a value that is none of these gives one warning.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace cairn {

enum class LogLevel : std::uint8_t {
  kTrace = 1,
  kDebug,    // what was removed, or made anew
  kInfo,     // what a save or load is doing: one line a phase, of rank 0
  kWarning,  // something is not as it should be, and Cairn goes on
  kError,    // something was lost
  kOff,      // of no line: nothing is logged
};
const char* to_string(LogLevel level) noexcept;  // as in CAIRN_LOG

struct LogLine {
  LogLevel level = LogLevel::kInfo;
  int rank = -1;          // whose line it is; -1: of the whole process
  std::string_view text;  // without level and rank; mostly one line. Borrowed for the call
};

// Gets every line of the level or above. It is called on whatever thread has something to say, on several at a time, without locks of
// Cairn's: it should be quick. What it throws goes no further, and the line goes to standard error; so do lines of Cairn's that its own
// work leads to.
using LogSink = std::function<void(const LogLine&)>;

// For the whole process; all of these are thread-safe. A null sink: standard error again. A sink that was replaced may still be running.
void set_log_sink(LogSink sink);
// From now on, whatever CAIRN_LOG says.
void set_log_level(LogLevel level) noexcept;
LogLevel log_level() noexcept;

// For Cairn's own use, and for sinks and planners that want their lines among Cairn's. `write_log` drops a line that cannot be written.
bool is_logged(LogLevel level) noexcept;
bool is_logged_to_stderr() noexcept;  // there is no sink but Cairn's own
void write_log(LogLevel level, int rank, std::string_view text) noexcept;

}  // namespace cairn
