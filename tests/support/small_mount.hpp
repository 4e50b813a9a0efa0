// A real file system for one test, small enough to fill.
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <map>
#include <optional>
#include <string>

#include <cairn/tests/support/environment.hpp>
#include <cairn/tests/support/plain.hpp>
#include <cairn/tests/support/skipped.hpp>

namespace cairn::testing {

namespace detail {

inline constexpr const char* kHasOwnMounts = "CAIRN_TEST_HAS_OWN_MOUNTS";
inline constexpr int kReportDescriptor = 3;

// Runs in the child process. Returns the text that it reports.
template <class Act>
std::string act_on_mount(const std::string& path, const char* options, unsigned long flags, Act act) {
  if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("tmpfs", path.c_str(), "tmpfs", flags, options) != 0)
    return "cannot mount";
  std::string text;
  try {
    text = act();
  } catch (const std::exception& error) {
    text = error.what();
  }
  ::umount2(path.c_str(), MNT_DETACH);  // so that the directory can be removed
  return text;
}

// Runs the current test case in a new process of this binary and returns the text that it reports.
inline std::string report_of_own_process() {
  std::string name = doctest::getContextOptions()->currentTest->m_name;
  std::replace(name.begin(), name.end(), ',', '?');  // commas separate filters
  std::string filter = "--test-case=" + name;
  std::string self = "/proc/self/exe";
  char* const arguments[] = {self.data(), filter.data(), nullptr};
  int report[2];
  REQUIRE(::pipe2(report, O_CLOEXEC) == 0);
  const std::map<std::string, std::optional<std::string>> mark{{kHasOwnMounts, "1"}};
  const Environment marked(mark);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY,
                                     0);  // this process reports the result
  ::posix_spawn_file_actions_adddup2(&actions, report[1], kReportDescriptor);
  pid_t child = -1;
  const int problem = ::posix_spawn(&child, self.c_str(), &actions, nullptr, arguments, environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(report[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t count = 0; (count = ::read(report[0], buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(count));
  ::close(report[0]);
  REQUIRE(problem == 0);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  return text;
}

}  // namespace detail

// Runs `act` in a process of its own, with a new tmpfs mounted at `path` that only this process
// sees. Checks that `act` returns "" and not the text of a failure. If mounting is not allowed, the
// test case reports that it was skipped.
//
// The process runs this binary again and starts the current test case from its beginning. A fork
// would lack the threads and devices of the parent.
template <class Act>
void on_small_mount(const std::string& path, const char* options, unsigned long flags, Act act) {
  const bool is_that_process = std::getenv(detail::kHasOwnMounts) != nullptr;
  const std::string text = is_that_process ? detail::act_on_mount(path, options, flags, act) : detail::report_of_own_process();
  if (is_that_process) {
    const auto written = ::write(detail::kReportDescriptor, text.data(), text.size());
    ::close(detail::kReportDescriptor);
    REQUIRE(written == static_cast<ssize_t>(text.size()));
  }
  if (text != "cannot mount")
    CHECK(text == "");
  else if (!is_that_process)
    skip_case("mounting is not allowed here; the simulated file system covers it");
}

}  // namespace cairn::testing
