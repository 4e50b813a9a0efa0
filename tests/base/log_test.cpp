// Log output: where it goes, which messages appear, and that it never harms the program.
#include <cairn/tests/support/plain.hpp>
//

#include <atomic>
#include <regex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <cairn/base/log.hpp>
#include <cairn/base/status_line.hpp>
#include <cairn/tests/support/captured_log.hpp>
#include <cairn/tests/support/own_child.hpp>

namespace cairn::testing {
namespace {

TEST_CASE("log: a sink that throws harms nobody, and its line is not lost") {
  const std::string text = stderr_of_case("log child: a sink that throws");
  CHECK(times_in(text, "[warning] rank 3: first") == 1);
  CHECK(times_in(text, "[error] rank 3: second") == 1);
}

TEST_CASE("log child: a sink that throws" * doctest::skip()) {
  set_log_sink([](const LogLine&) { throw std::runtime_error("a sink's"); });
  write_log(LogLevel::kWarning, 3, "first");
  set_log_sink([](const LogLine&) { throw 5; });
  write_log(LogLevel::kError, 3, "second");
}

TEST_CASE("log: what a sink leads to goes to standard error, not to the sink again") {
  const std::string text = stderr_of_case("log child: a sink that logs");
  CHECK(times_in(text, "rank 1: outer") == 0);
  CHECK(times_in(text, "rank 2: inner") == 1);
}

TEST_CASE("log child: a sink that logs" * doctest::skip()) {
  set_log_sink([](const LogLine&) { write_log(LogLevel::kError, 2, "inner"); });
  write_log(LogLevel::kWarning, 1, "outer");
}

TEST_CASE("log: a wrong CAIRN_LOG gives one warning, and counts as warning") {
  const std::string text = stderr_of_case("log child: a line of each level", {{"CAIRN_LOG", "loud"}});
  CHECK(times_in(text, "[warning] CAIRN_LOG names no level: set it to trace, debug, info") == 1);
  CHECK(times_in(text, "CAIRN_LOG") == 1);
  CHECK(times_in(text, "of level") == 2);
}

TEST_CASE("log: CAIRN_LOG says which lines are written; without it warnings and errors") {
  const std::string levels[] = {"trace", "debug", "info", "warning", "error", "off"};
  for (std::size_t level = 0; level < std::size(levels); ++level) {
    CAPTURE(levels[level]);
    const std::string text = stderr_of_case("log child: a line of each level", {{"CAIRN_LOG", levels[level]}});
    for (std::size_t line = 0; line < 5; ++line)
      CHECK(times_in(text, "rank 7: of level " + levels[line]) == (line >= level ? 1 : 0));
  }
  CHECK(times_in(stderr_of_case("log child: a line of each level", {{"CAIRN_LOG", ""}}), "of level") == 2);
}

TEST_CASE("log child: a line of each level" * doctest::skip()) {
  for (const LogLevel level : {LogLevel::kTrace, LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError})
    write_log(level, 7, std::string("of level ") + to_string(level));
}

TEST_CASE("log: a program's own level counts, whatever CAIRN_LOG says") {
  const std::string text = stderr_of_case("log child: a level of its own", {{"CAIRN_LOG", "error"}});
  CHECK(times_in(text, "before") == 0);
  CHECK(times_in(text, "[debug] after") == 1);
}

TEST_CASE("log child: a level of its own" * doctest::skip()) {
  write_log(LogLevel::kInfo, -1, "before");
  set_log_level(LogLevel::kDebug);
  write_log(LogLevel::kDebug, -1, "after");
}

TEST_CASE("log: texts are taken as they are") {
  const CapturedLog log;
  write_log(LogLevel::kWarning, 0, "percent %s and {braces} {}");
  CHECK(log.text() == "warning rank 0: percent %s and {braces} {}\n");
  CHECK(times_in(stderr_of_case("log child: braces"), "percent %s and {braces} {}") == 1);
}

TEST_CASE("log: a line on standard error has time, library and level before its text") {
  const std::regex line(R"(\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}\] \[cairn\] \[warning\] percent %s and \{braces\} \{\}\n)");
  CHECK(std::regex_match(stderr_of_case("log child: braces"), line));
}

TEST_CASE("log: a line on standard error has the local time") {
  // Two zones 26 hours apart never have the same date.
  const auto date = [](const char* zone) { return stderr_of_case("log child: braces", {{"TZ", zone}}).substr(1, 10); };
  CHECK(date("EAST-14") != date("WEST12"));
}

TEST_CASE("log child: braces" * doctest::skip()) { write_log(LogLevel::kWarning, -1, "percent %s and {braces} {}"); }

TEST_CASE("log: threads may log, and change sink and level, at the same time") {
  constexpr int kThreads = 4;
  constexpr int kLines = 500;
  const LogLevel before = log_level();
  std::atomic<int> lines{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread)
    threads.emplace_back([&lines, thread] {
      for (int line = 0; line < kLines; ++line) {
        set_log_sink([&lines](const LogLine&) { ++lines; });
        set_log_level(LogLevel::kInfo);
        write_log(LogLevel::kInfo, thread, "a line");
      }
    });
  for (auto& thread : threads) thread.join();
  set_log_sink(nullptr);
  set_log_level(before);
  CHECK(lines == kThreads * kLines);
}

// --- the line at the bottom of a terminal --------------------------------------------------------

// Returns the bytes that draw `text` in the line below the cursor, which stays where it is.
std::string drawn(const std::string& text) { return "\033D\033[A\0337\033[J\033[B\r" + text + "\0338"; }
constexpr const char* kErased = "\033[J";

TEST_CASE("status line: other output goes above it, and it is gone in the end") {
  const std::string text = stderr_of_case("log child: a status line", {{"TERM", "xterm"}}, ChildStderr::kTerminal, 60);
  CHECK(text.find(drawn("half done") + kErased + "[") != std::string::npos);
  const std::size_t line = text.find("[warning] look\r\n");
  REQUIRE(line != std::string::npos);
  CHECK(text.substr(line) == "[warning] look\r\n" + drawn("half done") + drawn("60 columns") + kErased);
}

TEST_CASE("status line: a CAIRN_STATUS_TERMINAL that is gone changes nothing") {
  CHECK(stderr_of_case("log child: no terminal", {{"TERM", "xterm"}, {"CAIRN_STATUS_TERMINAL", "/dev/pts/none"}}) == "");
}

TEST_CASE("log child: a status line" * doctest::skip()) {
  CHECK(has_status_terminal());
  draw_status("half done");
  write_log(LogLevel::kWarning, -1, "look");
  draw_status(std::to_string(status_columns()) + " columns");
  clear_status();
  clear_status();
}

TEST_CASE("status line: not where standard error is no terminal, or one that cannot redraw") {
  CHECK(stderr_of_case("log child: no terminal", {{"TERM", "xterm"}}) == "");
  CHECK(stderr_of_case("log child: no terminal", {{"TERM", "dumb"}}, ChildStderr::kTerminal) == "");
}

TEST_CASE("log child: no terminal" * doctest::skip()) { CHECK_FALSE(has_status_terminal()); }

}  // namespace
}  // namespace cairn::testing
