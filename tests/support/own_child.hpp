// Runs a test case of this binary in a child process with its own environment and standard error,
// which is a pipe or a terminal.
#pragma once

#include <fcntl.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>

namespace cairn::testing {

enum class ChildStderr { kPipe, kTerminal };

// Runs the named case, which is decorated with `skip`, to its end. Returns everything that the
// process wrote to standard error. Throws if the case failed. Once the process has written `cue`,
// types one line at the terminal.
inline std::string stderr_of_case(const std::string& test_case, const std::map<std::string, std::string>& environment = {},
                                  ChildStderr kind = ChildStderr::kPipe, unsigned short columns = 80, const std::string& cue = "") {
  int ends[2];
  winsize size{24, columns, 0, 0};
  const int made = kind == ChildStderr::kPipe ? ::pipe(ends) : ::openpty(&ends[0], &ends[1], nullptr, nullptr, &size);
  if (made != 0) throw std::runtime_error("no pipe or terminal is to be had");
  char self[PATH_MAX] = {};
  if (::readlink("/proc/self/exe", self, sizeof self - 1) < 0) throw std::runtime_error("this binary does not know its name");
  const std::string filter = "-tc=" + test_case;
  const pid_t child = ::fork();
  if (child == 0) {
    for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
    ::dup2(ends[1], STDERR_FILENO);
    ::dup2(::open("/dev/null", O_WRONLY), STDOUT_FILENO);
    ::close(ends[0]);
    ::close(ends[1]);
    ::execl(self, self, filter.c_str(), "--no-skip", static_cast<char*>(nullptr));
    ::_exit(127);
  }
  ::close(ends[1]);
  std::string text;
  char block[4096];
  bool typed = cue.empty();
  for (ssize_t taken = 0; (taken = ::read(ends[0], block, sizeof block)) > 0;) {
    text.append(block, static_cast<std::size_t>(taken));
    if (!typed && text.find(cue) != std::string::npos) typed = ::write(ends[0], "\n", 1) == 1;
  }
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) throw std::runtime_error("the case '" + test_case + "' failed:\n" + text);
  return text;
}

}  // namespace cairn::testing
