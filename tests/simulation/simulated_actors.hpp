// The shipping actors of one simulated rank, on CAF's scheduler for tests. They run in the caller's
// thread, one message at a time, on a clock that the world sets.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/scheduler/test_coordinator.hpp>

#include <cairn/actors/caf_system.hpp>
#include <cairn/actors/links/links.hpp>
#include <cairn/actors/rank_supervisor.hpp>
#include <cairn/base/clock.hpp>
#include <cairn/tests/simulation/virtual_time.hpp>

namespace cairn::simulation {

class SimulatedActors final : public ActorSystem {
 public:
  SimulatedActors();
  ~SimulatedActors() override;
  caf::actor_system& caf_system() override { return system_; }

  // Returns the supervisor of a rank whose runtime was just made.
  SupervisorActor new_supervisor() const;
  // Kills the child of the supervisor with this name: "planner", "storage" or "coordinator".
  void kill_child(const SupervisorActor& supervisor, const std::string& name);

  // Returns whether an actor has a message to handle.
  bool has_work() const { return scheduler_.has_job(); }
  // Lets one actor, chosen by `dice`, handle one message.
  void run_one(Dice& dice);
  // Runs until no actor has a message left.
  void run_all();

  // Sets the clock, and sends the messages that are due by then.
  void set_time(Duration now);
  // Returns when the next delayed message is due.
  std::optional<Duration> next_due();

 private:
  struct Configuration : caf::actor_system_config {
    Configuration() { set("scheduler.policy", caf::atom("testing")); }
  };
  Configuration configuration_;
  caf::actor_system system_;
  caf::scheduler::test_coordinator& scheduler_;
};

// Makes the links actor of one rank. It passes what the supervisor sends to `host`.
class SimulatedLinks final : public LinksFactory {
 public:
  struct Host {
    virtual ~Host() = default;
    virtual void send_to(int peer, const SharedBytes& bytes) = 0;
    virtual void open_link_to(int peer) = 0;
    // `links` has begun to serve this supervisor, and has ended.
    virtual void links_begin(const caf::actor& links, const SupervisorActor& supervisor) = 0;
    virtual void links_end(bool leaves, const std::string& why) = 0;
  };
  explicit SimulatedLinks(Host& host) : host_(host) {}
  caf::actor spawn(caf::actor_system& system, int rank, const RuntimeOptions& options, const caf::actor& owner) override;

 private:
  Host& host_;
  std::shared_ptr<bool> serves_;  // of the newest links actor: an older one has no effect any more
};

}  // namespace cairn::simulation
