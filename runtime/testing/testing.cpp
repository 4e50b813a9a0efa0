#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include <pthread.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cairn/base/error.hpp>
#include <cairn/base/mutex.hpp>
#include <cairn/runtime/launch/tcp_store.hpp>
#include <cairn/runtime/testing/injection.hpp>
#include <cairn/runtime/worlds/world.hpp>

// The functions of <cairn/runtime/testing/testing.hpp>. That header is not included here, because
// it needs doctest.
namespace cairn::testing {

World& world();
const std::string& shared_directory();
void barrier();
int run_joined(const std::function<int(int rank)>& run);

namespace {

constexpr std::chrono::seconds kPatience{60};
const std::vector<std::uint8_t> kSet{1};  // a typed constant: newer stores also have an overload for strings

class Session;
Mutex session_mutex;
Session* session CAIRN_GUARDED_BY(session_mutex) = nullptr;  // `LastWill` reads it on its own thread

// The state that the ranks of a run share, while it exists.
class Session {
 public:
  // A prefix of its own, because the world meets in the same store.
  Session() : store_(c10::make_intrusive<c10d::PrefixStore>("cairn-testing", open_store(place_in_environment(), kPatience))) {
    world_ = World::from_environment();
    if (world_->rank() == 0) {
      const char* root = std::getenv("TMPDIR");
      std::string name = std::string(root != nullptr && *root != '\0' ? root : "/tmp") + "/cairn-ranks-XXXXXX";
      if (::mkdtemp(name.data()) == nullptr) throw system_error("make a directory like", name, errno);
      directory_ = name;
      store_->set("directory", std::vector<std::uint8_t>(name.begin(), name.end()));
    } else {
      store_->wait({"directory"}, kPatience);
      const auto name = store_->get("directory");
      directory_.assign(name.begin(), name.end());
    }
    const MutexLock lock(session_mutex);
    session = this;
  }
  ~Session() {
    {
      const MutexLock lock(session_mutex);
      session = nullptr;
    }
    if (world_->rank() == 0) remove_directory();
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  World& world() { return *world_; }
  const std::string& directory() const { return directory_; }

  void remove_directory() noexcept {
    // Files that cannot be removed do not change the result of a test.
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }

  // Rank 0 leaves last, because it may host the store.
  void leave() {
    barrier();
    if (world_->rank() != 0) {
      store_->set("left/" + std::to_string(world_->rank()), kSet);
      return;
    }
    for (int rank = 1; rank < world_->size(); ++rank) store_->wait({"left/" + std::to_string(rank)}, kPatience);
  }

  void barrier() {
    // Each barrier has keys of its own, because a key that is set stays set.
    const std::string name = "barrier/" + std::to_string(++barriers_);
    if (store_->add(name + "/count", 1) == world_->size()) store_->set(name + "/open", kSet);
    try {
      store_->wait({name + "/open"}, kPatience);
    } catch (const std::exception& error) {
      throw Error(ErrorCode::kDeadline,
                  "rank " + std::to_string(world_->rank()) + " waited in vain for all ranks at " + name + ": " + error.what());
    }
  }

 private:
  const c10::intrusive_ptr<c10d::Store> store_;
  std::optional<World> world_;
  std::string directory_;
  int barriers_ = 0;
};

Session& current() {
  MutexLock lock(session_mutex);
  if (session == nullptr) {
    throw Error(ErrorCode::kPrecondition, "this test needs ranks: start the binary with cairn-launch -n RANKS -- ...");
  }
  return *session;
}

// Removes the directory when the launcher ends this process. A thread waits for the signal, because
// a signal handler may not remove files.
class LastWill {
 public:
  LastWill() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGTERM);
    sigaddset(&signals_, SIGINT);
    sigaddset(&signals_, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &signals_, &before_);
    thread_ = std::thread([this] { wait(); });
  }
  ~LastWill() {
    // Only a signal ends `sigwait`.
    pthread_kill(thread_.native_handle(), SIGUSR2);
    thread_.join();
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  void wait() {
    int number = 0;
    while (sigwait(&signals_, &number) != 0) {
    }
    if (number == SIGUSR2) return;
    {
      MutexLock lock(session_mutex);
      if (session != nullptr && session->world().rank() == 0) session->remove_directory();
    }
    // As shells report it. Without destructors, because other threads are still running.
    ::_exit(128 + number);
  }
  sigset_t signals_;
  sigset_t before_;
  std::thread thread_;
};

}  // namespace

World& world() { return current().world(); }
const std::string& shared_directory() { return current().directory(); }
void barrier() { current().barrier(); }

int run_joined(const std::function<int(int rank)>& run) {
  if (std::getenv("RANK") == nullptr) return run(-1);
  try {
    // Before the world is made, which asks for the injector then.
    allow_injection();
    // Before the session: threads that its world starts inherit the blocked signals, so that only
    // `LastWill` receives them.
    const LastWill last_will;
    Session joined;
    const int code = run(joined.world().rank());
    if (code == 0) joined.leave();
    return code;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %s gives up: %s\n", std::getenv("RANK"), error.what());
    return 1;
  }
}

}  // namespace cairn::testing
