// Checks that a test leaves nothing behind: compares this process's open descriptors and threads at
// the test's beginning and at its end.
//
//   TEST_CASE_FIXTURE(LeakCheck, "...") { ... }
#pragma once

#include <dirent.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <thread>

#include <cairn/tests/support/plain.hpp>

namespace cairn::testing {

// Counts of open descriptors or running threads by name: "socket:", "/tmp/x", a thread's name.
using Inventory = std::map<std::string, int>;

namespace detail {

template <class Name>
Inventory list_directory(const char* path, Name name) {
  Inventory found;
  DIR* const directory = ::opendir(path);
  if (directory == nullptr) return found;
  while (const dirent* entry = ::readdir(directory)) {
    if (entry->d_name[0] == '.' || std::atoi(entry->d_name) == ::dirfd(directory)) continue;
    const std::string text = name(std::string(path) + "/" + entry->d_name);
    if (!text.empty()) ++found[text];
  }
  ::closedir(directory);
  return found;
}

}  // namespace detail

inline Inventory open_descriptors() {
  return detail::list_directory("/proc/self/fd", [](const std::string& path) {
    char target[4096];
    const auto length = ::readlink(path.c_str(), target, sizeof(target));
    const std::string text(target, length > 0 ? static_cast<std::size_t>(length) : 0);
    return text.substr(0, text.find_first_of(" ["));  // "socket:[1234]" counts as "socket:", "/x (deleted)" as "/x"
  });
}

inline Inventory running_threads() {
  // The thread sanitizer starts a thread of its own along with the first one.
  static const bool has_first = (std::thread([] {}).join(), true);
  static_cast<void>(has_first);
  return detail::list_directory("/proc/self/task", [](const std::string& path) {
    std::string text;
    std::getline(std::ifstream(path + "/comm"), text);
    return text;
  });
}

inline std::string difference(const Inventory& before, const Inventory& after) {
  std::string text;
  for (const auto& [name, count] : after) {
    const auto old = before.find(name);
    const int more = count - (old == before.end() ? 0 : old->second);
    if (more > 0) text += " " + std::to_string(more) + " x " + name;
  }
  return text;
}

class LeakCheck {
 public:
  LeakCheck() : descriptors_(open_descriptors()), threads_(running_threads()) {}
  ~LeakCheck() {
    // The kernel wakes the joiner before it removes the thread from /proc, so a joined thread may
    // be listed for a moment.
    const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!threads_left().empty() && std::chrono::steady_clock::now() < patience) std::this_thread::yield();
    CHECK_MESSAGE(threads_left().empty(), "threads left behind:" << threads_left());
    const auto descriptors_left = difference(descriptors_, open_descriptors());
    CHECK_MESSAGE(descriptors_left.empty(), "descriptors left behind:" << descriptors_left);
  }
  LeakCheck(const LeakCheck&) = delete;
  LeakCheck& operator=(const LeakCheck&) = delete;

 private:
  std::string threads_left() const { return difference(threads_, running_threads()); }
  Inventory descriptors_;
  Inventory threads_;
};

}  // namespace cairn::testing
