// When a manager saves: by steps, time and signals, within the grace period, and in the background.
#include <array>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <set>

#include <cairn/tests/support/torch.hpp>  // before the headers that use doctest

#include <cairn/storage/runs/run_directory.hpp>
#include <cairn/tests/runtime/managed_run.hpp>
#include <cairn/tests/support/captured_log.hpp>
#include <cairn/tests/support/controlled_run.hpp>
#include <cairn/tests/support/environment.hpp>
#include <cairn/tests/support/failure_maps.hpp>
#include <cairn/tests/support/gate.hpp>
#include <cairn/tests/support/thrown.hpp>
#include <cairn/tests/support/wrapped_store.hpp>

using namespace cairn;
using namespace cairn::testing;
namespace fs = std::filesystem;

namespace {

class HandSetClock final : public Clock {
 public:
  MonotonicTime now() const override { return MonotonicTime(std::chrono::milliseconds(passed_)); }
  WallTime wall_now() const override { return {}; }
  void pass(std::chrono::milliseconds time) { passed_ += time.count(); }

 private:
  std::atomic<std::int64_t> passed_{1000000};
};

// The managers of all ranks of one process. They make their calls together.
struct Managers {
  Managers(int ranks, const CheckpointManagerOptions& options, const WorldOptions& world_options = {})
      : worlds(World::in_process(ranks, world_options)) {
    forget_memory("manager");
    for (const World& world : worlds)
      managers.push_back(std::make_unique<CheckpointManager>(world, "mem://manager/cadence", options));
  }
  ~Managers() {
    managers.clear();
    forget_memory("manager");
  }

  // Makes the call on the first `count` ranks only. Checks that all get the same answer.
  bool on_ranks(std::size_t count, const std::function<bool(CheckpointManager&)>& call) {
    std::vector<std::future<bool>> others;
    for (std::size_t rank = 1; rank < count; ++rank)
      others.push_back(std::async(std::launch::async, [&, rank] { return call(*managers[rank]); }));
    const bool said = call(*managers[0]);
    for (auto& other : others) CHECK(other.get() == said);
    return said;
  }
  bool should_save(std::int64_t step) {
    return on_ranks(managers.size(), [&](CheckpointManager& manager) { return manager.should_save(step); });
  }
  void save(std::int64_t step) {
    on_ranks(managers.size(), [&](CheckpointManager& manager) { return save_steps(manager, {step}), true; });
  }

  std::vector<World> worlds;
  std::vector<std::unique_ptr<CheckpointManager>> managers;
};

struct RunInMemory {
  RunInMemory() { forget_memory("manager"); }
  ~RunInMemory() { forget_memory("manager"); }
  const std::string run = "mem://manager/signals";
};

// Counts the messages that each rank exchanges with other ranks, in both directions.
class CountsMessages final : public Observer {
 public:
  static constexpr std::size_t kRanks = 4;
  void on_event(const ObservedEvent& event) noexcept override {
    if (event.kind != EventKind::kSent || event.peer < 0) return;
    ++counts_[static_cast<std::size_t>(event.rank)];
    ++counts_[static_cast<std::size_t>(event.peer)];
  }
  // Returns the counts since the previous call.
  std::vector<int> take() {
    std::vector<int> counts;
    for (auto& count : counts_) counts.push_back(count.exchange(0));
    return counts;
  }

 private:
  std::array<std::atomic<int>, kRanks> counts_{};
};

// Four ranks with a simulated clock and a message counter.
struct WatchedManagers {
  explicit WatchedManagers(CheckpointManagerOptions options) {
    options.clock = &clock;
    WorldOptions world_options;
    world_options.observer = messages;
    managers.emplace(static_cast<int>(CountsMessages::kRanks), options, world_options);
  }
  // Returns whether `should_save` made the ranks exchange messages.
  bool talked(std::int64_t step) {
    messages->take();
    said = managers->should_save(step);
    const std::vector<int> counts = messages->take();
    if (counts == std::vector<int>{0, 0, 0, 0}) return false;
    CHECK(counts == std::vector<int>{6, 2, 2, 2});  // two messages with each rank but 0
    return true;
  }

  HandSetClock clock;
  const std::shared_ptr<CountsMessages> messages = std::make_shared<CountsMessages>();
  bool said = false;
  std::optional<Managers> managers;
};

// Blocks the store's writes in the chosen saves, counted from 1, until a Cancel message has been
// handled.
class HoldsUntilCancelled final : public Observer {
 public:
  HoldsUntilCancelled(std::shared_ptr<StoreControl> control, std::set<int> held)
      : control_(std::move(control)), held_(std::move(held)) {}
  void on_event(const ObservedEvent& event) noexcept override {
    if (event.is(Operation::kSave) && held_.count(++saves_) > 0) control_->close_gate();
    if (event.kind == EventKind::kHandled && event.is(MessageKind::kCancel)) control_->open_gate();
  }

 private:
  const std::shared_ptr<StoreControl> control_;
  const std::set<int> held_;
  std::atomic<int> saves_{0};
};

}  // namespace

TEST_CASE_FIXTURE(ControlledRun, "manager: a background save longer than the grace period is cancelled") {
  const CapturedLog log;
  CheckpointManagerOptions options;
  options.save_on_signal = {SIGUSR1};
  options.grace_period = std::chrono::milliseconds(0);
  CheckpointManager manager(World::single(), run, options);
  control->close_gate();
  const auto saving = manager.async_save(1, state_of_step(1, manager.world()));
  control->wait_for_writes(1);
  std::raise(SIGUSR1);
  CHECK(manager.should_save(2));
  // The earlier save does not end, and the new one does not wait for it.
  CHECK(thrown_by([&] { manager.save(2, state_of_step(2, manager.world())); }).code == ErrorCode::kCheckpoint);
  CHECK_MESSAGE(log.text().find("step 2 was not saved within the grace period of 0 ms") != std::string::npos, log.text());
  control->open_gate();
  const Thrown thrown = thrown_by([&] { saving.result(); });
  CHECK_MESSAGE(thrown.says("the grace period after signal"), thrown.what);
  CHECK(manager.checkpoints().empty());
  save_steps(manager, {2});
  check_kept(manager, Names{"step_2"});
}

TEST_CASE_FIXTURE(ControlledRun, "manager: saves of one step in flight together have names of their own") {
  CheckpointManager manager(World::single(), run);
  AsyncSaveOptions background;
  background.while_in_flight = WhileInFlight::kReplace;
  control->close_gate();
  const auto first = manager.async_save(7, state_of_step(7, manager.world()), {}, background);
  control->wait_for_writes(1);
  const auto second = manager.async_save(7, state_of_step(7, manager.world()), {}, background);
  control->open_gate();
  first.result();
  second.result();
  CHECK(manager.wait_for_saves());
  CHECK(names_in(manager) == Names{"step_7.2", "step_7"});
}

TEST_CASE_FIXTURE(RunOnDisk, "manager: retention follows saves in the background") {
  managed(run, keeping_last(2), [&](CheckpointManager& manager) {
    for (const std::int64_t step : {7, 8, 9}) manager.async_save(step, state_of_step(step, manager.world())).result();
    CHECK(manager.wait_for_saves());
    check_kept(manager, Names{"step_9", "step_8"});
  });
  managed(run, keeping_last(1), [&](CheckpointManager& manager) { manager.async_save(10, state_of_step(10, manager.world())); });
  CHECK(restored_step(run) == 10);
  CHECK_FALSE(fs::exists(place("step_9")));  // the destructor applied retention
}

TEST_CASE("manager: steps and time say when to save, on all ranks alike") {
  HandSetClock clock;
  CheckpointManagerOptions options;
  options.save_every_steps = 3;
  options.save_every = std::chrono::seconds(60);
  options.ask_every_steps = 1;
  options.clock = &clock;
  Managers managers(kManagedRanks, options);
  CHECK_FALSE(managers.should_save(1));
  CHECK(managers.should_save(3));
  managers.save(3);
  CHECK_FALSE(managers.should_save(3));  // already saved
  clock.pass(std::chrono::seconds(59));
  CHECK_FALSE(managers.should_save(4));
  clock.pass(std::chrono::seconds(1));
  CHECK(managers.should_save(4));
  CHECK(managers.should_save(5));  // due since step 4 and still not saved
  managers.save(5);
  CHECK_FALSE(managers.should_save(7));
  CHECK(managers.should_save(3));  // the trainer went back to an earlier step
}

TEST_CASE("manager: ranks communicate about once a second and leave no trace events") {
  CheckpointManagerOptions options;
  options.save_every = std::chrono::minutes(10);
  WatchedManagers watched(options);
  int talks = 0;
  for (int step = 1; step <= 100; ++step) {
    watched.clock.pass(std::chrono::milliseconds(100));
    talks += watched.talked(step) ? 1 : 0;
    CHECK_FALSE(watched.said);
  }
  CHECK(talks > 9);
  CHECK(talks < 16);
  for (const World& world : watched.managers->worlds) CHECK(world.dump_trace().find("Join") == std::string::npos);
}

TEST_CASE("manager: ranks communicate at intervals that at most double, up to 64 calls") {
  CheckpointManagerOptions options;
  options.save_every = std::chrono::hours(10);
  WatchedManagers watched(options);
  std::vector<int> talks;
  for (int step = 1; step <= 260; ++step) {
    watched.clock.pass(std::chrono::milliseconds(1));
    if (watched.talked(7)) talks.push_back(step);  // the interval counts calls, not step numbers
  }
  CHECK(talks == std::vector<int>{1, 3, 7, 15, 31, 63, 127, 191, 255});
}

TEST_CASE("manager: ranks that wait for signals communicate at least every 8 calls") {
  CheckpointManagerOptions options;
  options.save_on_signal = {SIGUSR1};
  WatchedManagers watched(options);
  std::vector<int> talks;
  for (int step = 1; step <= 32; ++step) {
    watched.clock.pass(std::chrono::milliseconds(1));
    if (watched.talked(step)) talks.push_back(step);
  }
  CHECK(talks == std::vector<int>{1, 3, 7, 15, 23, 31});
}

TEST_CASE("manager: after save_every, ranks communicate in every call until they save") {
  CheckpointManagerOptions options;
  options.save_every = std::chrono::milliseconds(2500);
  WatchedManagers watched(options);
  for (int step = 1; step <= 27; ++step) {
    watched.clock.pass(std::chrono::milliseconds(100));
    const bool talked = watched.talked(step);
    CHECK(watched.said == (step >= 25));
    if (step >= 25) CHECK(talked);
  }
}

TEST_CASE("manager: ranks never communicate if only save_every_steps is set") {
  CheckpointManagerOptions options;
  options.save_every_steps = 10;
  WatchedManagers watched(options);
  for (int step = 1; step <= 20; ++step) {
    CHECK_FALSE(watched.talked(step));
    CHECK(watched.said == (step % 10 == 0));
  }
}

TEST_CASE("manager: an agreement without a dead rank throws the same on all ranks") {
  CheckpointManagerOptions options;
  options.save_on_signal = {SIGUSR1};
  WorldOptions world_options;
  world_options.runtime.heartbeat_timeout = std::chrono::milliseconds(200);
  Managers managers(3, options, world_options);
  CHECK_FALSE(managers.should_save(1));
  managers.worlds[2].shutdown(std::chrono::minutes(1));
  std::array<FailureMap, 2> heard;
  managers.on_ranks(2, [&](CheckpointManager& manager) {
    heard[static_cast<std::size_t>(manager.world().rank())] = failures_of([&] {
      manager.should_save(2);
      manager.should_save(3);
    });
    return true;
  });
  CHECK(ranks_of(heard[0]) == std::set<int>{2});
  CHECK((heard[0] == heard[1]));
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const std::string ring = managers.worlds[rank].dump_trace();
    CHECK(ring.find("outcome") != std::string::npos);
    CHECK(ring.find("Join") == std::string::npos);
  }
}

TEST_CASE_FIXTURE(RunInMemory, "manager: a signal that comes to one rank is all ranks' reason to save") {
  CheckpointManagerOptions options;
  options.save_on_signal = {SIGUSR1, SIGUSR2};
  options.ask_every_steps = 2;
  std::promise<void> raised;
  const std::shared_future<void> has_been_raised = raised.get_future().share();
  on_all_ranks(kManagedRanks, [&](World& world) {
    // Rank 0 starts to watch after the signal, so only rank 1 sees it.
    if (world.rank() == 0) has_been_raised.wait();
    CheckpointManager manager(world, run, options);
    if (world.rank() == 1) {
      std::raise(SIGUSR1);
      raised.set_value();
    }
    CHECK_FALSE(manager.should_save(1));  // the ranks do not communicate at this step
    CHECK(manager.signal() == 0);
    CHECK(manager.should_save(2));
    CHECK(manager.signal() == SIGUSR1);
    save_steps(manager, {2});
    CHECK_FALSE(manager.should_save(4));  // each signal asks for one save
    CHECK(manager.signal() == SIGUSR1);
    CHECK(manager.latest()->step == 2);
  });
}

TEST_CASE_FIXTURE(RunInMemory, "manager: of several signals, on one rank or on several, each is a reason to save") {
  CheckpointManagerOptions options;
  options.save_on_signal = {SIGUSR1, SIGUSR2};
  options.ask_every_steps = 1;
  std::promise<void> raised[2];
  const std::shared_future<void> has_been_raised[2] = {raised[0].get_future().share(), raised[1].get_future().share()};
  on_all_ranks(kManagedRanks, [&](World& world) {
    // Rank 0 starts to watch after SIGUSR2, so only rank 1 sees both signals.
    if (world.rank() == 0) has_been_raised[1].wait();
    CheckpointManager manager(world, run, options);
    std::raise(world.rank() == 0 ? SIGUSR1 : SIGUSR2);
    raised[world.rank()].set_value();
    has_been_raised[0].wait();
    std::set<int> signals;
    for (const std::int64_t step : {1, 2}) {
      CHECK(manager.should_save(step));
      signals.insert(manager.signal());
      save_steps(manager, {step});
    }
    CHECK(signals == std::set<int>{SIGUSR1, SIGUSR2});
  });
}

TEST_CASE_FIXTURE(RunInMemory, "manager: a signal known to one rank outlasts the save for another's signal") {
  CheckpointManagerOptions options;
  options.ask_every_steps = 1;
  std::promise<void> raised[2];
  const std::shared_future<void> has_been_raised[2] = {raised[0].get_future().share(), raised[1].get_future().share()};
  on_all_ranks(kManagedRanks, [&](World& world) {
    CheckpointManagerOptions own = options;
    own.save_on_signal = {world.rank() == 0 ? SIGUSR1 : SIGUSR2};
    HandSetClock clock;
    own.clock = &clock;
    CheckpointManager manager(world, run, own);
    std::raise(own.save_on_signal[0]);
    raised[world.rank()].set_value();
    for (const auto& other : has_been_raised) other.wait();
    std::set<int> signals;
    for (const std::int64_t step : {1, 2}) {
      CHECK(manager.should_save(step));
      signals.insert(manager.signal());
      save_steps(manager, {step});
      clock.pass(own.grace_period);  // the save has taken all of it
    }
    CHECK(signals == std::set<int>{SIGUSR1, SIGUSR2});
    CHECK_FALSE(manager.should_save(3));
  });
}

TEST_CASE_FIXTURE(RunInMemory, "manager: of two signals that reach two ranks at different steps, the first wins") {
  std::promise<void> saved;
  const std::shared_future<void> is_saved = saved.get_future().share();
  on_all_ranks(kManagedRanks, [&](World& world) {
    CheckpointManagerOptions own;
    own.ask_every_steps = 2;
    own.save_on_signal = {world.rank() == 0 ? SIGUSR1 : SIGUSR2};
    HandSetClock clock;
    own.clock = &clock;
    CheckpointManager manager(world, run, own);
    if (world.rank() == 0) std::raise(SIGUSR1);
    save_steps(manager, {1});  // rank 0 notes its signal
    if (world.rank() == 0) saved.set_value();
    is_saved.wait();
    clock.pass(own.grace_period / 2);
    if (world.rank() == 1) std::raise(SIGUSR2);
    CHECK(manager.should_save(2));
    CHECK(manager.signal() == SIGUSR1);
    save_steps(manager, {2});
    clock.pass(own.grace_period);
    CHECK_FALSE(manager.should_save(3));  // the ranks do not communicate at this step
    CHECK(manager.should_save(4));
    CHECK(manager.signal() == SIGUSR2);
    save_steps(manager, {4});
    CHECK_FALSE(manager.should_save(6));
  });
}

TEST_CASE_FIXTURE(RunInMemory, "manager: a signal that reaches one rank later than the others causes one save") {
  // Rank 0 is asked for the time while the ranks agree.
  struct RaisingClock final : Clock {
    MonotonicTime now() const override {
      if (raises.exchange(false)) std::raise(SIGUSR1);
      return {};
    }
    WallTime wall_now() const override { return {}; }
    mutable std::atomic<bool> raises{false};
  };
  std::promise<void> raised;
  const std::shared_future<void> has_been_raised = raised.get_future().share();
  on_all_ranks(kManagedRanks, [&](World& world) {
    if (world.rank() == 0) has_been_raised.wait();  // it starts to watch after the signal to rank 1
    RaisingClock clock;
    CheckpointManagerOptions own;
    own.save_on_signal = {SIGUSR1};
    own.ask_every_steps = 1;
    own.clock = &clock;
    CheckpointManager manager(world, run, own);
    if (world.rank() == 1) {
      std::raise(SIGUSR1);
      raised.set_value();
    }
    clock.raises = world.rank() == 0;
    CHECK(manager.should_save(1));
    save_steps(manager, {1});
    CHECK_FALSE(manager.should_save(2));
  });
}

TEST_CASE_FIXTURE(ControlledRun, "manager: a save that misses the grace period is reported") {
  WorldOptions world_options;
  world_options.observer = std::make_shared<HoldsUntilCancelled>(control, std::set<int>{2});
  HandSetClock clock;
  CheckpointManagerOptions options;
  options.save_on_signal = {SIGUSR2};
  options.clock = &clock;
  CheckpointManager manager(World::single(world_options), run, options);
  save_steps(manager, {1});
  std::raise(SIGUSR2);
  CHECK(manager.should_save(2));
  control->before = [&](const std::string&) { clock.pass(options.grace_period); };  // while the ranks agree on the name
  const Thrown thrown = thrown_by([&] { save_steps(manager, {2}); });
  CHECK(thrown.code == ErrorCode::kCheckpoint);
  CHECK_MESSAGE(thrown.says("deadline"), thrown.what);
  control->before = nullptr;
  CHECK(manager.latest_valid()->checkpoint.step == 1);
  // The grace period does not apply to the next save.
  save_steps(manager, {2});
  check_kept(manager, Names{"step_2", "step_1"});
  std::raise(SIGUSR2);
  CHECK_FALSE(manager.should_save(2));  // already saved
  CHECK(manager.signal() == SIGUSR2);
  save_steps(manager, {3});
}

TEST_CASE_FIXTURE(ControlledRun, "manager: the grace period of the launcher counts if it is the shorter one") {
  const CapturedLog log;
  const std::map<std::string, std::optional<std::string>> variables{{"CAIRN_GRACE_SECONDS", "1"}};
  const Environment launched(variables);
  WorldOptions world_options;
  world_options.observer = std::make_shared<HoldsUntilCancelled>(control, std::set<int>{2});
  CheckpointManagerOptions options;
  options.save_on_signal = {SIGUSR2};
  CheckpointManager manager(World::single(world_options), run, options);
  save_steps(manager, {1});
  std::raise(SIGUSR2);
  CHECK(manager.should_save(2));
  CHECK(thrown_by([&] { save_steps(manager, {2}); }).says("deadline"));
  CHECK_MESSAGE(log.text().find("within the grace period of 900 ms") != std::string::npos, log.text());
}

namespace {

// A run that keeps one checkpoint, with one removal that the store does not end before the test
// opens its gate.
struct HangingRemoval : ControlledRun {
  HangingRemoval() {
    options = keeping_last(1);
    options.save_on_signal = {SIGUSR1};
    options.grace_period = std::chrono::hours(1);
    options.clock = &clock;
  }
  ~HangingRemoval() { hanging->open(); }
  void hang_in_removal() {
    control->before = [gate = hanging, has_hung = std::make_shared<std::atomic<bool>>(false)](const std::string& operation) {
      if (operation == "remove" && !has_hung->exchange(true)) gate->pass();
    };
  }
  static AsyncSaveResponse begin_save(CheckpointManager& manager, std::int64_t step) {
    return manager.async_save(step, state_of_step(step, manager.world()));
  }

  const std::shared_ptr<Gate> hanging = std::make_shared<Gate>();  // shared with the thread that hangs
  HandSetClock clock;
  CheckpointManagerOptions options;
};

}  // namespace

TEST_CASE_FIXTURE(HangingRemoval, "manager: after a signal nothing waits for a removal that hangs") {
  const CapturedLog log;
  {
    CheckpointManager manager(World::single(), run, options);
    save_steps(manager, {1});
    hang_in_removal();
    manager.save(2, state_of_step(2, manager.world()));
    hanging->wait_until_reached();
    const auto saving = begin_save(manager, 3);  // waits for room
    std::raise(SIGUSR1);
    saving.result();
    CHECK(manager.should_save(4));
    manager.save(4, state_of_step(4, manager.world()));
    CHECK(names_in(manager) == Names{"step_4", "step_3", "step_2"});
    clock.pass(options.grace_period);
  }
  CHECK_MESSAGE(log.text().find("still being removed after the grace period") != std::string::npos, log.text());
}

TEST_CASE_FIXTURE(HangingRemoval, "manager: a save waits for its place until the grace period is over") {
  options.grace_period = std::chrono::milliseconds(0);
  CheckpointManager manager(World::single(), run, options);
  save_steps(manager, {1});
  hang_in_removal();
  manager.save(2, state_of_step(2, manager.world()));
  hanging->wait_until_reached();
  const auto saving = begin_save(manager, 1);
  std::raise(SIGUSR1);
  const Thrown thrown = thrown_by([&] { saving.result(); });
  CHECK_MESSAGE(thrown.says("was not removed from " + run + "/step_1 before the grace period"), thrown.what);
  CHECK(names_in(manager) == Names{"step_2"});
  hanging->open();
  save_steps(manager, {1, 3});
  check_kept(manager, Names{"step_3"});
}

TEST_CASE_FIXTURE(ControlledRun, "manager: nothing is removed in the grace period, and not when the manager ends") {
  managed(run, {}, [](CheckpointManager& manager) { save_steps(manager, {1, 2, 3}); });
  HandSetClock clock;
  CheckpointManagerOptions options = keeping_last(1);
  options.save_on_signal = {SIGUSR1};
  options.clock = &clock;
  for (const bool in_background : {true, false}) {
    CheckpointManager manager(World::single(), run, options);
    std::raise(SIGUSR1);
    CHECK(manager.should_save(4));
    if (in_background)
      manager.async_save(4, state_of_step(4, manager.world())).result();
    else
      manager.save(5, state_of_step(5, manager.world()));
  }
  CHECK(RunDirectory(run).list().checkpoints.size() == 5);
  CheckpointManager manager(World::single(), run, options);
  std::raise(SIGUSR1);
  CHECK(manager.should_save(6));
  save_steps(manager, {6, 7});
  check_kept(manager, Names{"step_7", "step_6", "step_5", "step_4", "step_3", "step_2", "step_1"});
  clock.pass(options.grace_period);
  save_steps(manager, {8});
  check_kept(manager, Names{"step_8"});
}

TEST_CASE("manager: should_save waits for other ranks only for the grace period") {
  CheckpointManagerOptions options;
  options.save_on_signal = {SIGUSR1};
  options.grace_period = std::chrono::seconds(1);
  Managers managers(kManagedRanks, options);
  std::raise(SIGUSR1);
  std::array<FailureMap, kManagedRanks> heard;
  for (CheckpointManager* manager : {managers.managers[0].get(), managers.managers[1].get()}) {  // one after the other
    heard[static_cast<std::size_t>(manager->world().rank())] = failures_of([&] { manager->should_save(1); });
  }
  REQUIRE(ranks_of(heard[0]) == std::set<int>{0});
  CHECK(heard[0].at(0).kind == FailureKind::kCancelled);
  CHECK(heard[0].at(0).code == ErrorCode::kDeadline);
  CHECK((heard[0] == heard[1]));
  CHECK(managers.should_save(2));  // the signal is not forgotten
  CHECK(managers.managers[1]->signal() == SIGUSR1);
}

TEST_CASE("manager: the grace period bounds the wait for absent ranks") {
  const CapturedLog log;
  CheckpointManagerOptions options;
  options.save_on_signal = {SIGUSR1};
  options.grace_period = std::chrono::milliseconds(0);
  Managers managers(kManagedRanks, options);
  for (const bool in_background : {false, true}) {
    std::raise(SIGUSR1);
    int calls = 1;  // the ranks do not communicate in each
    while (!managers.should_save(2)) REQUIRE(++calls <= 8);
    std::array<FailureMap, kManagedRanks> heard;
    for (CheckpointManager* manager : {managers.managers[0].get(), managers.managers[1].get()}) {  // one after the other
      heard[static_cast<std::size_t>(manager->world().rank())] = failures_of([&] {
        if (in_background)
          manager->async_save(2, state_of_step(2, manager->world()));
        else
          manager->save(2, state_of_step(2, manager->world()));
      });
    }
    REQUIRE(heard[0].count(0) == 1);
    CHECK(heard[0].at(0).kind == FailureKind::kCancelled);
    CHECK(heard[0].at(0).code == ErrorCode::kDeadline);
    CHECK_FALSE(heard[1].empty());
  }
  managers.save(3);
  CHECK(managers.managers[1]->latest()->name == "step_3");
  CHECK_MESSAGE(log.text().find("step 2 was not saved within the grace period of 0 ms") != std::string::npos, log.text());
}
