#include <cairn/actors/caf_system.hpp>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <vector>

#include <sys/eventfd.h>

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/atom.hpp>
#include <caf/io/middleman.hpp>

#include <cairn/actors/links/socket.hpp>
#include <cairn/base/error.hpp>
#include <cairn/base/mutex.hpp>
#include <cairn/base/signals_blocked.hpp>

namespace cairn {
namespace {

// An actor yields its thread after this many messages, so that a busy actor does not starve the
// others.
constexpr std::size_t kMessagesPerTurn = 64;

class Configuration : public caf::actor_system_config {
 public:
  explicit Configuration(unsigned threads) {
    load<caf::io::middleman>();
    // The "stealing" scheduler's workers spin while they look for work, which would take CPU time
    // from the trainer.
    set("scheduler.policy", caf::atom("sharing"));
    set("scheduler.max-threads", static_cast<std::size_t>(threads));
    set("scheduler.max-throughput", kMessagesPerTurn);
  }
};

class ThreadedActorSystem final : public ActorSystem {
 public:
  explicit ThreadedActorSystem(unsigned threads) : configuration_(threads), system_(configuration_) {}
  caf::actor_system& caf_system() override { return system_; }

 private:
  Configuration configuration_;
  caf::actor_system system_;
};

// CAF calls exit() if it cannot open its event loop, an epoll instance and a pipe. That runs exit
// handlers, OpenSSL's among them, while other ranks of the process use what these destroy. So this
// tries first, and throws.
void check_descriptors() {
  constexpr std::size_t kOfEventLoop = 3;
  std::vector<Socket> taken(kOfEventLoop);
  for (Socket& one : taken) {
    one.reset(::eventfd(0, EFD_CLOEXEC));
    if (!one.valid()) throw system_error("open an event loop for", "the actors of a rank", errno);
  }
}

}  // namespace

std::shared_ptr<ActorSystem> ActorSystem::create(unsigned threads) {
  if (threads == 0) threads = std::clamp(std::thread::hardware_concurrency(), 2u, 4u);
  static Mutex one_at_a_time;  // other ranks of this process must not take the descriptors in between
  const MutexLock lock(one_at_a_time);
  check_descriptors();
  const SignalsBlocked blocked;  // the new threads inherit the blocked signal mask
  return std::make_shared<ThreadedActorSystem>(threads);
}

}  // namespace cairn
