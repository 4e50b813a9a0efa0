// Actors of one rank that die: the coordinator and the links.
#include "actor_world.hpp"

#include <caf/exit_reason.hpp>
#include <caf/scoped_actor.hpp>
#include <caf/system_messages.hpp>

#include <cairn/actors/caf_system.hpp>
#include <cairn/actors/call_context.hpp>
#include <cairn/actors/rank_supervisor.hpp>

namespace cairn::test {
namespace {

using std::chrono::milliseconds;

// Remembers the links actors that it spawned.
class WatchedLinks : public LinksFactory {
 public:
  explicit WatchedLinks(int world_size) : links_(make_memory_links(world_size)), spawned_(static_cast<std::size_t>(world_size)) {}
  caf::actor spawn(caf::actor_system& system, int rank, const RuntimeOptions& options, const caf::actor& owner) override {
    auto actor = links_->spawn(system, rank, options, owner);
    std::lock_guard lock(mutex_);
    spawned_.at(static_cast<std::size_t>(rank)) = actor.address();
    return actor;
  }
  caf::actor of(int rank) {
    std::lock_guard lock(mutex_);
    return caf::actor_cast<caf::actor>(spawned_.at(static_cast<std::size_t>(rank)));
  }

 private:
  const std::shared_ptr<LinksFactory> links_;
  std::mutex mutex_;
  std::vector<caf::actor_addr> spawned_;
};

// Opens a gate at the first event with this name, such as the sending of a message.
class Sighting : public Observer {
 public:
  explicit Sighting(std::string_view name) : name_(name) {}
  void on_event(const ObservedEvent& event) noexcept override {
    if (event.name == name_) gate.open();
  }

  Gate gate;

 private:
  const std::string_view name_;
};

// Supervisors without a runtime, so that a test can reach their children.
class SupervisedRanks {
 public:
  explicit SupervisedRanks(int size, RuntimeOptions options = {}, const std::shared_ptr<Observer>& observer = nullptr)
      : system_(ActorSystem::create(2)), links_(std::make_shared<WatchedLinks>(size)) {
    options.trace_ring_bytes = 1u << 16;
    for (int rank = 0; rank < size; ++rank) {
      ranks_.push_back(std::make_unique<Rank>());
      tracers_.push_back(std::make_shared<Tracer>(rank, options.trace_ring_bytes, observer));
      orders_.push_back(std::make_shared<Orders>());
      supervisors_.push_back(
          spawn_supervisor(system_->caf_system(), config_of(rank, size, options), links_, tracers_.back(), orders_.back()));
    }
  }
  ~SupervisedRanks() {
    for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) stop(rank);
    supervisors_.clear();
    system_.reset();
  }

  CallSettings settings;
  Rank& rank(int index) { return *ranks_.at(static_cast<std::size_t>(index)); }

  Future<CallResult> start_save(int index) {
    auto promise = std::make_shared<Promise<CallResult>>();
    auto context = std::make_shared<CallContext>(save_call_of(rank(index), settings, ++ordinals_[index]), ++ticket_, index,
                                                 static_cast<int>(ranks_.size()), true,
                                                 [promise](CallResult outcome) { promise->set_value(std::move(outcome)); });
    orders_.at(static_cast<std::size_t>(index))->start(tap(index).wrap(StartCall{std::move(context)}));
    caf::anon_send(supervisor(index), TakeOrders{});
    return promise->future();
  }
  std::vector<Future<CallResult>> start_saves() {
    std::vector<Future<CallResult>> futures;
    for (int index = 0; index < static_cast<int>(ranks_.size()); ++index) futures.push_back(start_save(index));
    return futures;
  }
  std::vector<CallResult> save() { return ActorWorld::collect(start_saves()); }

  // Stops the supervisor and waits until it has ended all calls.
  void stop(int index) {
    auto& target = supervisors_.at(static_cast<std::size_t>(index));
    if (!target) return;
    auto sent = std::make_shared<std::promise<void>>();
    const std::future<void> stopped = sent->get_future();
    caf::anon_send(target, tap(index).wrap(Stop{std::move(sent)}));
    stopped.wait();
    target = SupervisorActor();
  }

  // Kills the coordinator of that rank. Returns once the supervisor has a new one.
  void kill_coordinator(int index) {
    const auto old = children(index).coordinator;
    kill(caf::actor_cast<caf::actor>(old));
    while (children(index).coordinator == old) std::this_thread::yield();
  }
  void kill_links(int index) {
    children(index);  // once it answers, the supervisor has started its links
    kill(links_->of(index));
  }
  // Kills the supervisor of that rank. Returns once its planner, storage, coordinator and links
  // have ended.
  void kill_supervisor(int index) {
    caf::scoped_actor self{system_->caf_system()};
    const Children found = children(index);
    for (const auto& child : {caf::actor_cast<caf::actor>(found.planner), caf::actor_cast<caf::actor>(found.storage),
                              caf::actor_cast<caf::actor>(found.coordinator), links_->of(index)})
      self->monitor(child);
    auto& target = supervisors_.at(static_cast<std::size_t>(index));
    kill(caf::actor_cast<caf::actor>(target));
    target = SupervisorActor();
    for (int ended = 0; ended < 4; ++ended) self->receive([](const caf::down_msg&) {});
  }

 private:
  SupervisorActor& supervisor(int index) { return supervisors_.at(static_cast<std::size_t>(index)); }
  Tap tap(int index) { return Tap(tracers_.at(static_cast<std::size_t>(index)), Actor::kRuntime); }

  Children children(int index) {
    caf::scoped_actor self{system_->caf_system()};
    Children found;
    self->request(supervisor(index), caf::infinite, GetChildren{})
        .receive([&](Children& children) { found = children; }, [](const caf::error&) { FAIL("the supervisor is gone"); });
    return found;
  }
  void kill(const caf::actor& victim) {
    caf::scoped_actor self{system_->caf_system()};
    self->monitor(victim);
    self->send_exit(victim, caf::exit_reason::kill);
    self->receive([](const caf::down_msg&) {});
  }

  std::shared_ptr<ActorSystem> system_;
  std::shared_ptr<WatchedLinks> links_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<std::shared_ptr<Tracer>> tracers_;
  std::vector<std::shared_ptr<Orders>> orders_;
  std::vector<SupervisorActor> supervisors_;
  std::map<int, std::uint64_t> ordinals_;
  std::uint64_t ticket_ = 0;
};

// Remembers whether a coordinator was told of the end of a task that it does not run.
class StrayResults : public Observer {
 public:
  void on_event(const ObservedEvent& event) noexcept override {
    if (event.actor == Actor::kCoordinator && event.name == "end of a task that is not running") any = true;
  }
  std::atomic<bool> any{false};
};

TEST_CASE("a task result for a dead coordinator does not reach its replacement") {
  const auto stray = std::make_shared<StrayResults>();
  SupervisedRanks world(2, {}, stray);
  for (const char* const hook : {"planner.create_global_plan", "writer.finish"}) {
    CAPTURE(hook);
    Gate gate;
    world.rank(0).script.on(hook, [&gate] { gate.pass(); });
    const std::vector<Future<CallResult>> futures = world.start_saves();
    gate.wait_until_reached();
    world.kill_coordinator(0);
    gate.open();
    for (const auto& outcome : ActorWorld::collect(futures)) {
      REQUIRE(ranks_of(outcome.failures) == std::set<int>{0});
      CHECK(outcome.failures.at(0).what.find("the coordinator actor of rank 0 died") != std::string::npos);
    }
    world.rank(0).script.clear();
    for (const auto& outcome : world.save()) CHECK(outcome.ok());
  }
  CHECK_FALSE(stray->any);
}

TEST_CASE("the store decides if a coordinator is lost while it publishes") {
  RuntimeOptions options;
  options.heartbeat_timeout = milliseconds(500);  // a successor waits for twice as long
  for (const auto answer : {Committed::kYes, Committed::kNo, Committed::kUnknown}) {
    SupervisedRanks world(4, options);
    Gate gate;
    world.rank(0).script.on("writer.finish", [&gate] { gate.pass(); });
    world.rank(1).script.committed = answer;
    std::vector<Future<CallResult>> futures = world.start_saves();
    gate.wait_until_reached();
    world.kill_supervisor(0);
    std::vector<CallResult> outcomes;
    for (const int rank : {1, 2, 3}) outcomes.push_back(futures[static_cast<std::size_t>(rank)].get());
    CHECK(all_equal(outcomes));
    CHECK(ranks_of(outcomes[0].failures) == std::set<int>{0});
    CHECK(outcomes[0].failures.at(0).kind == FailureKind::kLost);
    CHECK(outcomes[0].committed == answer);
    CHECK(world.rank(1).writer.asked_for == outcomes[0].save_id);
    for (const int rank : {1, 2, 3}) CHECK(world.rank(rank).script.count("writer.abandon") == (answer == Committed::kYes ? 0 : 1));
    gate.open();
    futures[0].get();
  }
}

TEST_CASE("a supervisor waits for a replaced coordinator to end its calls") {
  const auto told = std::make_shared<Sighting>("CoordinatorStopped");
  SupervisedRanks world(2, {}, told);
  world.kill_coordinator(0);
  world.rank(0).script.on("planner.create_local_plan", [&told] { told->gate.pass(); });
  const std::vector<Future<CallResult>> futures = {world.start_save(0), world.start_save(1)};
  told->gate.wait_until_reached();
  world.stop(0);
  const auto outcomes = ActorWorld::collect(futures);
  CHECK(all_equal(outcomes));
  CHECK(outcomes[0].failures.at(0).kind == FailureKind::kCancelled);
}

TEST_CASE("a rank whose links are not replaced any more fails at once, and names them") {
  RuntimeOptions options;
  options.child_restarts_max = 0;
  SupervisedRanks world(2, options);
  world.kill_links(1);
  const auto outcome = world.start_save(1).get();  // the other rank makes no call
  REQUIRE_FALSE(outcome.ok());
  const std::string& what = outcome.failures.begin()->second.what;
  CHECK_MESSAGE(what.find("the links actor of rank 1 died") != std::string::npos, what);
}

}  // namespace
}  // namespace cairn::test
