// When a manager saves: steps, time and signals, the grace period, and saves in the background.
#include <atomic>
#include <csignal>
#include <filesystem>
#include <functional>
#include <future>
#include <set>

#include <cairn/tests/support/torch.hpp>  // before the headers that use doctest

#include <cairn/tests/runtime/managed_run.hpp>
#include <cairn/tests/support/captured_log.hpp>
#include <cairn/tests/support/controlled_run.hpp>
#include <cairn/tests/support/thrown.hpp>
#include <cairn/tests/support/wrapped_store.hpp>

using namespace cairn;
using namespace cairn::testing;
namespace fs = std::filesystem;

namespace {

class HandSetClock final : public Clock {
 public:
  MonotonicTime now() const override { return MonotonicTime(std::chrono::seconds(seconds)); }
  WallTime wall_now() const override { return {}; }
  std::atomic<int> seconds{1000};
};

// Has the store hold the writes of some saves, counted from 1, until they have been told to end.
class HoldsUntilCancelled final : public Observer {
 public:
  HoldsUntilCancelled(std::shared_ptr<StoreControl> control, std::set<int> held)
      : control_(std::move(control)), held_(std::move(held)) {}
  void on_event(const ObservedEvent& event) noexcept override {
    if (event.kind == EventKind::kCall && event.name == "save" && held_.count(++saves_) > 0) control_->close_gate();
    if (event.kind == EventKind::kHandled && event.name == "Cancel") control_->open_gate();
  }

 private:
  const std::shared_ptr<StoreControl> control_;
  const std::set<int> held_;
  std::atomic<int> saves_{0};
};

}  // namespace

TEST_CASE_FIXTURE(ControlledRun, "manager: a save in the background that the grace period does not suffice for is ended") {
  WorldOptions world_options;
  world_options.observer = std::make_shared<HoldsUntilCancelled>(control, std::set<int>{1, 2});
  CheckpointManagerOptions options;
  options.save_on_signal = {SIGUSR1};
  options.grace_period = std::chrono::milliseconds(0);
  CheckpointManager manager(World::single(world_options), run, options);
  const auto saving = manager.async_save(1, state_of_step(1, manager.world()));
  control->wait_for_writes(1);
  std::raise(SIGUSR1);
  CHECK(manager.should_save(2));
  CHECK(thrown_by([&] { save_steps(manager, {2}); }).says("deadline"));
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
  CHECK_FALSE(fs::exists(place("step_9")));  // the destructor saw to it
}

TEST_CASE("manager: steps and time say when to save, on all ranks alike") {
  forget_memory("manager");
  HandSetClock clock;
  CheckpointManagerOptions options;
  options.save_every_steps = 3;
  options.save_every = std::chrono::seconds(60);
  options.clock = &clock;
  std::vector<World> worlds = World::in_process(kManagedRanks);
  std::vector<std::unique_ptr<CheckpointManager>> managers;
  for (const World& world : worlds)
    managers.push_back(std::make_unique<CheckpointManager>(world, "mem://manager/cadence", options));
  const auto on_all = [&](const std::function<bool(CheckpointManager&)>& call) {
    auto other = std::async(std::launch::async, [&] { return call(*managers[1]); });
    const bool said = call(*managers[0]);
    CHECK(other.get() == said);
    return said;
  };
  const auto asked = [&](std::int64_t step) {
    return on_all([&](CheckpointManager& manager) { return manager.should_save(step); });
  };
  const auto saved = [&](std::int64_t step) {
    on_all([&](CheckpointManager& manager) { return save_steps(manager, {step}), true; });
  };
  CHECK_FALSE(asked(1));
  CHECK(asked(3));
  saved(3);
  CHECK_FALSE(asked(3));  // it is there already
  clock.seconds += 59;
  CHECK_FALSE(asked(4));
  clock.seconds += 1;
  CHECK(asked(4));
  CHECK(asked(5));  // it was not saved
  saved(5);
  CHECK_FALSE(asked(7));
  CHECK(asked(3));  // went back
  managers.clear();
  forget_memory("manager");
}

TEST_CASE("manager: without steps, times or signals nothing is due") {
  managed(
      "mem://manager/never", {}, [](CheckpointManager& manager) { CHECK_FALSE(manager.should_save(0)); }, 1);
}

TEST_CASE("manager: a signal that comes to one rank is all ranks' reason to save") {
  forget_memory("manager");
  CheckpointManagerOptions options;
  options.save_on_signal = {SIGUSR1, SIGUSR2};
  options.ask_every_steps = 2;
  std::promise<void> raised;
  const std::shared_future<void> has_been_raised = raised.get_future().share();
  on_all_ranks(kManagedRanks, [&](World& world) {
    // Rank 0 begins to watch when the signal has come and gone: it is rank 1's alone.
    if (world.rank() == 0) has_been_raised.wait();
    CheckpointManager manager(world, "mem://manager/signal", options);
    if (world.rank() == 1) {
      std::raise(SIGUSR1);
      raised.set_value();
    }
    CHECK_FALSE(manager.should_save(1));  // nobody is asked
    CHECK(manager.signal() == 0);
    CHECK(manager.should_save(2));
    CHECK(manager.signal() == SIGUSR1);
    save_steps(manager, {2});
    CHECK_FALSE(manager.should_save(4));  // once for each
    CHECK(manager.signal() == SIGUSR1);
    CHECK(manager.latest()->step == 2);
  });
  forget_memory("manager");
}

TEST_CASE_FIXTURE(ControlledRun,
                  "manager: what is not saved within the grace period is reported, and the checkpoint before it stands") {
  WorldOptions world_options;
  world_options.observer = std::make_shared<HoldsUntilCancelled>(control, std::set<int>{2});
  CheckpointManagerOptions options;
  options.save_on_signal = {SIGUSR2};
  options.grace_period = std::chrono::milliseconds(0);
  CheckpointManager manager(World::single(world_options), run, options);
  save_steps(manager, {1});
  std::raise(SIGUSR2);
  CHECK(manager.should_save(2));
  const Thrown thrown = thrown_by([&] { save_steps(manager, {2}); });
  CHECK(thrown.code == ErrorCode::kCheckpoint);
  CHECK_MESSAGE(thrown.says("deadline"), thrown.what);
  CHECK(manager.latest_valid()->checkpoint.step == 1);
  // The next one is in no hurry.
  save_steps(manager, {2});
  check_kept(manager, Names{"step_2", "step_1"});
  std::raise(SIGUSR2);
  CHECK_FALSE(manager.should_save(2));  // it is there
  CHECK(manager.signal() == SIGUSR2);
  save_steps(manager, {3});
}
