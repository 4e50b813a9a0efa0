// A real file system of a test's own, small enough to fill.
#pragma once

#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <exception>
#include <optional>
#include <string>

#include <cairn/tests/support/plain.hpp>

namespace cairn::testing {

// Runs `act` in a process of its own, which sees a new tmpfs of `options` at `path`, as nobody else does. What went wrong there;
// nothing where mounting is not allowed.
template <class Act>
std::optional<std::string> on_small_mount(const std::string& path, const char* options, unsigned long flags, Act act) {
  int report[2];
  REQUIRE(::pipe(report) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    std::string text = "cannot mount";
    if (::unshare(CLONE_NEWNS) == 0 && ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
        ::mount("tmpfs", path.c_str(), "tmpfs", flags, options) == 0) {
      try {
        text = act();
      } catch (const std::exception& error) {
        text = error.what();
      }
    }
    const auto written = ::write(report[1], text.data(), text.size());
    ::_exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  ::close(report[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t count = 0; (count = ::read(report[0], buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(count));
  ::close(report[0]);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  if (text == "cannot mount") return std::nullopt;
  return text;
}

}  // namespace cairn::testing
