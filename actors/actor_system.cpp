#include <cairn/actors/actor_system.hpp>

#include <algorithm>
#include <thread>

#include <caf/actor_system_config.hpp>
#include <caf/atom.hpp>
#include <caf/io/middleman.hpp>

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

class CafActorSystem : public ActorSystem {
 public:
  explicit CafActorSystem(unsigned threads) : configuration_(threads), system_(configuration_) {}
  caf::actor_system& system() { return system_; }

 private:
  Configuration configuration_;
  caf::actor_system system_;
};

}  // namespace

std::shared_ptr<ActorSystem> ActorSystem::create(unsigned threads) {
  if (threads == 0) threads = std::clamp(std::thread::hardware_concurrency(), 2u, 4u);
  const SignalsBlocked blocked;  // the new threads inherit the blocked signal mask
  return std::make_shared<CafActorSystem>(threads);
}

caf::actor_system& caf_system_of(ActorSystem& system) {
  auto* own = dynamic_cast<CafActorSystem*>(&system);
  if (own == nullptr) throw Error(ErrorCode::kInvalidArgument, "an ActorSystem must come from ActorSystem::create");
  return own->system();
}

}  // namespace cairn
