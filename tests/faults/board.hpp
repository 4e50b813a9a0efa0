// A directory through which processes report their progress to each other. A waiting process wakes
// when the file that it waits for appears.
#pragma once

#include <poll.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <cairn/base/error.hpp>

namespace cairn::testing {

class Board {
 public:
  // Creates the directory.
  explicit Board(std::string directory) : directory_(std::move(directory)) {
    std::filesystem::create_directories(directory_);
    watch_ = ::inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (watch_ < 0 || ::inotify_add_watch(watch_, directory_.c_str(), IN_MOVED_TO | IN_CREATE) < 0)
      throw system_error("watch", directory_, errno);
  }
  ~Board() { ::close(watch_); }
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  std::string path(const std::string& name) const { return directory_ + "/" + name; }
  bool has(const std::string& name) const { return std::filesystem::exists(path(name)); }

  // Creates the file atomically: readers see all of it or none.
  void post(const std::string& name, const std::string& text = "") const {
    const std::string draft = path(name) + ".draft." + std::to_string(::getpid());
    std::ofstream(draft) << text;
    std::filesystem::rename(draft, path(name));
  }
  std::string read(const std::string& name) const {
    std::ifstream file(path(name));
    return {std::istreambuf_iterator<char>(file), {}};
  }

  // Waits until the file exists. Throws kDeadline after one minute, which only a hang reaches.
  void await(const std::string& name) const {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!has(name)) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(give_up - std::chrono::steady_clock::now());
      if (left.count() <= 0) throw Error(ErrorCode::kDeadline, "nobody posted " + path(name));
      pollfd waiting{watch_, POLLIN, 0};
      ::poll(&waiting, 1, static_cast<int>(left.count()));
      char events[4096];
      while (::read(watch_, events, sizeof events) > 0) {
      }
    }
  }
  // Waits until the file of every rank in `ranks` exists.
  void await_all(const std::string& name, const std::vector<int>& ranks) const {
    for (const int rank : ranks) await(name + "." + std::to_string(rank));
  }

 private:
  const std::string directory_;
  int watch_ = -1;
};

}  // namespace cairn::testing
