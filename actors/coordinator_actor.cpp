#include <cairn/actors/coordinator_actor.hpp>

#include <map>
#include <utility>

#include <caf/typed_event_based_actor.hpp>

#include <cairn/actors/call_events.hpp>
#include <cairn/actors/links/exit_reason.hpp>
#include <cairn/actors/machine_table.hpp>
#include <cairn/actors/protocol/coordinator_machine.hpp>
#include <cairn/actors/timer_queue.hpp>
#include <cairn/base/log.hpp>

namespace cairn {
namespace {

class Coordinator : public CoordinatorActor::base {
 public:
  Coordinator(caf::actor_config& config, std::shared_ptr<Inbox> supervisor, std::shared_ptr<Tracer> tracer,
              protocol::Identity world, RuntimeOptions options, std::uint64_t life)
      : CoordinatorActor::base(config),
        supervisor_(std::move(supervisor)),
        tap_(std::move(tracer), Actor::kCoordinator),
        rank_(world.rank),
        life_(life),
        machines_(std::move(world), options),
        timers_(options.heartbeat_timeout) {}

  CoordinatorActor::behavior_type make_behavior() override {
    set_exception_handler(exit_reason_of);
    return {
        [this](const Traced<CoordinatorEvent>& message) {
          const CoordinatorEvent& told = message.value;
          tap_.handle(message, [&] { told.is_for_all ? step_all(told.event) : step(told.checkpointer, told.event); });
        },
        [this](const Traced<Stop>& message) {
          tap_.handle(message, [&] {
            step_all(protocol::Cancelled{"the runtime of rank " + std::to_string(rank_) + ", which coordinates, was shut down"});
            supervisor_->post(tap_.wrap(CoordinatorStopped{}));
          });
        },
        [this](WakeUp) {
          for (const auto& [checkpointer, timer] : timers_.take_due(clock().now())) time_out(checkpointer, timer);
          timers_.arm(this, true);
        },
    };
  }

 private:
  using Machine = protocol::CoordinatorMachine;

  void step_all(const protocol::Event& event) {
    if (const auto* down = std::get_if<protocol::PeerDown>(&event))
      if (!down->reachable) down_.insert_or_assign(down->rank, *down);
    if (const auto* up = std::get_if<protocol::PeerUp>(&event)) down_.erase(up->rank);
    for (auto& [checkpointer, machine] : machines_) perform(checkpointer, machine, machine.step(event));
    timers_.arm(this);
  }

  void step(const std::string& checkpointer, const protocol::Event& event) {
    if (const auto* received = std::get_if<protocol::Received>(&event)) down_.erase(received->from);
    auto& machine = machine_of(checkpointer);
    perform(checkpointer, machine, machine.step(event));
    timers_.arm(this);
  }

  void time_out(const std::string& checkpointer, protocol::Timer timer) {
    tap_.set_cause(record_state(tap_, timer, checkpointer, 0));
    step(checkpointer, protocol::TimerFired{timer});
    tap_.set_cause(0);
  }

  Machine& machine_of(const std::string& checkpointer) {
    if (auto* known = machines_.find(checkpointer)) return *known;
    auto& made = machines_.make(checkpointer);
    for (const auto& [rank, down] : down_) made.step(down);
    return made;
  }

  void perform(const std::string& checkpointer, const Machine& machine, protocol::Effects effects) {
    for (auto& effect : effects) {
      if (std::holds_alternative<protocol::Send>(effect) || std::holds_alternative<protocol::RunTask>(effect)) {
        supervisor_->post(tap_.wrap(CoordinatorEffect{life_, checkpointer, std::move(effect)}));
      } else if (const auto* warning = std::get_if<protocol::Warn>(&effect)) {
        write_log(LogLevel::kWarning, rank_, warning->what);
      } else {
        perform_own(effect, tap_, timers_, clock().now(), checkpointer, machine.counter());
      }
    }
  }

  const std::shared_ptr<Inbox> supervisor_;
  Tap tap_;
  const int rank_;
  const std::uint64_t life_;
  MachineTable<Machine> machines_;
  std::map<int, protocol::PeerDown> down_;  // passed to machines that are made later
  TimerQueue timers_;
};

}  // namespace

CoordinatorActor spawn_coordinator(caf::actor_system& system, std::shared_ptr<Inbox> supervisor, std::shared_ptr<Tracer> tracer,
                                   const protocol::Identity& world, const RuntimeOptions& options, std::uint64_t life) {
  return system.spawn<Coordinator>(std::move(supervisor), std::move(tracer), world, options, life);
}

}  // namespace cairn
