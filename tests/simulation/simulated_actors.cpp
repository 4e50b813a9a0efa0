#include <cairn/tests/simulation/simulated_actors.hpp>

#include <algorithm>
#include <iterator>

#include <caf/actor_cast.hpp>
#include <caf/event_based_actor.hpp>
#include <caf/send.hpp>

#include <cairn/base/error.hpp>

namespace cairn::simulation {
namespace {

// The clock of the actors is ahead of virtual time, because CAF's starts above zero.
constexpr Duration kAhead = std::chrono::hours(1);

}  // namespace

SimulatedActors::SimulatedActors()
    : system_(configuration_), scheduler_(dynamic_cast<caf::scheduler::test_coordinator&>(system_.scheduler())) {
  system_.await_actors_before_shutdown(false);  // it would wait for actors that nobody runs
  scheduler_.clock().current_time = caf::actor_clock::time_point(kAhead);
}

SimulatedActors::~SimulatedActors() = default;

SupervisorActor SimulatedActors::new_supervisor() const {
  check_invariant(scheduler_.jobs.size() == 1, "a new runtime has one actor");
  auto& actor = dynamic_cast<caf::scheduled_actor&>(*scheduler_.jobs.front());
  return caf::actor_cast<SupervisorActor>(caf::strong_actor_ptr(actor.ctrl()));
}

void SimulatedActors::kill_child(const SupervisorActor& supervisor, const std::string& name) {
  system_.spawn([supervisor, name](caf::event_based_actor* self) {
    self->request(supervisor, caf::infinite, GetChildren{}).then([name](const Children& children) {
      const auto kill = [](const auto& child) {
        if (child) caf::anon_send_exit(child, caf::exit_reason::kill);
      };
      if (name == "planner") kill(children.planner);
      if (name == "storage") kill(children.storage);
      if (name == "coordinator") kill(children.coordinator);
    });
  });
}

void SimulatedActors::run_one(Dice& dice) {
  auto& jobs = scheduler_.jobs;
  const auto chosen = jobs.begin() + static_cast<std::ptrdiff_t>(dice.below(jobs.size()));
  std::rotate(jobs.begin(), chosen, std::next(chosen));
  scheduler_.run_once();
}

void SimulatedActors::run_all() {
  while (scheduler_.try_run_once()) {
  }
}

void SimulatedActors::set_time(Duration now) {
  auto& clock = scheduler_.clock();
  clock.advance_time(caf::actor_clock::time_point(now + kAhead) - clock.current_time);
}

std::optional<Duration> SimulatedActors::next_due() {
  const auto& schedule = scheduler_.clock().schedule();
  if (schedule.empty()) return std::nullopt;
  return schedule.begin()->first.time_since_epoch() - kAhead;
}

caf::actor SimulatedLinks::spawn(caf::actor_system& system, int, const RuntimeOptions&, const caf::actor& owner) {
  if (serves_) *serves_ = false;
  serves_ = std::make_shared<bool>(true);
  const caf::actor links = system.spawn([&host = host_, owner, serves = serves_](caf::event_based_actor* self) -> caf::behavior {
    self->monitor(owner);
    self->set_down_handler([self](caf::down_msg&) { self->quit(caf::exit_reason::user_shutdown); });
    return {
        [&host, serves](const LinkSend& message) {
          if (*serves) host.send_to(message.rank, whole(message));
        },
        [&host, serves](const LinkOpen& message) {
          if (*serves) host.open_link_to(message.rank);
        },
        [self](LinkClose) { self->quit(); },
    };
  });
  caf::actor_cast<caf::abstract_actor*>(links)->attach_functor([&host = host_, serves = serves_](const caf::error& reason) {
    if (*serves) host.links_end(!reason, reason == caf::exit_reason::kill ? "its links actor died" : "its supervisor died");
  });
  host_.links_begin(links, caf::actor_cast<SupervisorActor>(owner));
  return links;
}

}  // namespace cairn::simulation
