// A directory in which processes tell each other how far they are: one that waits is woken by the file it waits for.
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
  // Makes the directory.
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

  // Seen whole or not at all.
  void post(const std::string& name, const std::string& text = "") const {
    const std::string draft = path(name) + ".draft." + std::to_string(::getpid());
    std::ofstream(draft) << text;
    std::filesystem::rename(draft, path(name));
  }
  std::string read(const std::string& name) const {
    std::ifstream file(path(name));
    return {std::istreambuf_iterator<char>(file), {}};
  }

  // Until the file is there. Throws kDeadline after a minute: only a hang meets it.
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
  // Until there is one of each rank in `ranks`.
  void await_all(const std::string& name, const std::vector<int>& ranks) const {
    for (const int rank : ranks) await(name + "." + std::to_string(rank));
  }

 private:
  const std::string directory_;
  int watch_ = -1;
};

}  // namespace cairn::testing
