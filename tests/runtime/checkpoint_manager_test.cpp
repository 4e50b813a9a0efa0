// A run and its checkpoints: what is saved under which name, which ones stay, and from which one it goes on.
#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <mutex>

#include <cairn/tests/support/torch.hpp>  // before the headers that use doctest

#include <cairn/base/save_id.hpp>
#include <cairn/runtime/checkpoint_manager.hpp>
#include <cairn/storage/publication.hpp>
#include <cairn/storage/stores/memory_store.hpp>
#include <cairn/tests/storage/store_tools.hpp>
#include <cairn/tests/support/captured_log.hpp>
#include <cairn/tests/support/controlled_run.hpp>
#include <cairn/tests/support/in_process_world.hpp>
#include <cairn/tests/support/leak_check.hpp>
#include <cairn/tests/support/sample_state.hpp>
#include <cairn/tests/support/temporary_directory.hpp>
#include <cairn/tests/support/thrown.hpp>
#include <cairn/tests/support/wrapped_store.hpp>

using namespace cairn;
using namespace cairn::testing;
namespace fs = std::filesystem;

namespace {

constexpr int kManagedRanks = 2;

StateDict state_of_step(std::int64_t step, const World& world) {
  return {{"weight",
           ShardedTensor::distribute(counting({8, 4}, static_cast<double>(step)), over_all_ranks(world.size()), world.rank())},
          {"step", step}};
}

// What `restore_latest` made of a state of zeros: the step, if the tensor fits it.
std::int64_t step_in(const StateDict& state, const World& world) {
  const std::int64_t step = state.at("step").to_int();
  const StateDict expected = state_of_step(step, world);
  const auto& found = state.at("weight").sharded().local_shards();
  const auto& wanted = expected.at("weight").sharded().local_shards();
  CHECK(found.size() == wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) CHECK(torch::equal(found[i].tensor, wanted[i].tensor));
  return step;
}

Names names_in(const CheckpointManager& manager) {
  Names names;
  for (const auto& checkpoint : manager.checkpoints()) names.push_back(checkpoint.name);
  return names;
}

// On rank 0, which removes what is not kept before its call returns; others may see it later.
void check_kept(const CheckpointManager& manager, const Names& names) {
  if (manager.world().rank() == 0) CHECK(names_in(manager) == names);
}

CheckpointManagerOptions keeping_last(std::uint32_t count) {
  CheckpointManagerOptions options;
  options.retention.keep_last = count;
  return options;
}

// Each rank with a manager of its own.
using WithManager = std::function<void(CheckpointManager&)>;
void managed(const std::string& run, const CheckpointManagerOptions& options, const WithManager& body, int ranks = kManagedRanks) {
  on_all_ranks(ranks, [&](World& world) {
    CheckpointManager manager(world, run, options);
    body(manager);
  });
}

void save_steps(CheckpointManager& manager, std::initializer_list<std::int64_t> steps) {
  for (const auto step : steps) manager.save(step, state_of_step(step, manager.world()));
}

// The step that a new manager restores, on all ranks.
std::int64_t restored_step(const std::string& run) {
  std::mutex mutex;
  std::set<std::int64_t> steps;
  managed(run, {}, [&](CheckpointManager& manager) {
    StateDict state = state_of_step(0, manager.world());
    const auto restored = manager.restore_latest(state);
    REQUIRE(restored.has_value());
    std::lock_guard lock(mutex);
    steps.insert(step_in(state, manager.world()));
    CHECK(restored->checkpoint.step == step_in(state, manager.world()));
  });
  REQUIRE(steps.size() == 1);
  return *steps.begin();
}

// What every rank throws, which is the same.
std::string failure_on_all(const std::string& run, const CheckpointManagerOptions& options, ErrorCode code,
                           const WithManager& call) {
  std::mutex mutex;
  std::vector<FailureMap> maps;
  std::string text;
  managed(run, options, [&](CheckpointManager& manager) {
    try {
      call(manager);
    } catch (const CheckpointException& failed) {
      std::lock_guard lock(mutex);
      maps.push_back(failed.failures());
      text = failed.what();
    }
  });
  REQUIRE(maps.size() == kManagedRanks);
  CHECK((maps[0] == maps[1]));
  bool found = false;
  for (const auto& entry : maps[0]) found = found || entry.second.code == code;
  CHECK_MESSAGE(found, text);
  return text;
}

class HandSetClock final : public Clock {
 public:
  MonotonicTime now() const override { return MonotonicTime(std::chrono::seconds(seconds)); }
  WallTime wall_now() const override { return {}; }
  std::atomic<int> seconds{1000};
};

std::string data_file_in(const std::string& checkpoint) {
  for (const auto& entry : fs::directory_iterator(checkpoint))
    if (save_id_of_file(entry.path().filename().string())) return entry.path().string();
  throw std::runtime_error("there is no data file in " + checkpoint);
}

void flip_first_byte(const std::string& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const char byte = static_cast<char>(file.get() ^ 1);
  file.seekp(0);
  file.put(byte);
}

struct RunOnDisk {
  const TemporaryDirectory directory;
  const std::string run = directory.path() + "/run";
  std::string place(const std::string& name) const { return run + "/" + name; }
};

}  // namespace

TEST_CASE("manager: options that cannot be meant are refused, and a name is taken once in a world") {
  const World world = World::single();
  const auto refused = [&](const std::function<void(CheckpointManagerOptions&)>& change) {
    CheckpointManagerOptions options;
    change(options);
    return thrown_by([&] { CheckpointManager(world, "mem://manager/refused", options); }).code == ErrorCode::kInvalidArgument;
  };
  CHECK(refused([](auto& options) { options.retention.keep_last = 0; }));
  CHECK(refused([](auto& options) { options.save_every_steps = -1; }));
  CHECK(refused([](auto& options) { options.save_every = std::chrono::milliseconds(-1); }));
  CHECK(refused([](auto& options) { options.grace_period = std::chrono::milliseconds(-1); }));
  CHECK(refused([](auto& options) { options.ask_every_steps = 0; }));
  CHECK(refused([](auto& options) { options.clock = nullptr; }));
  CHECK(refused([](auto& options) { options.save_on_signal = {SIGKILL}; }));
  CHECK(refused([](auto& options) { options.user_metadata["metric.loss"] = "1"; }));
  CHECK(thrown_by([&] { CheckpointManager(world, "nowhere://x"); }).code == ErrorCode::kInvalidArgument);
  const CheckpointManager first(world, "mem://manager/refused");
  CHECK(thrown_by([&] { CheckpointManager(world, "mem://manager/refused"); }).code == ErrorCode::kAlreadyExists);
}

TEST_CASE_FIXTURE(RunOnDisk, "manager: a run that is not there has no checkpoint, and looking makes none") {
  managed(run, {}, [](CheckpointManager& manager) {
    StateDict state = state_of_step(3, manager.world());
    CHECK_FALSE(manager.restore_latest(state).has_value());
    CHECK_FALSE(manager.latest().has_value());
    CHECK_FALSE(manager.latest_valid().has_value());
    CHECK(step_in(state, manager.world()) == 3);
    CHECK(thrown_by([&] { manager.pin("step_1"); }).code == ErrorCode::kNotFound);
  });
  CHECK_FALSE(fs::exists(run));
}

TEST_CASE_FIXTURE(RunOnDisk, "manager: a run that cannot be written to fails the save on all ranks alike") {
  std::ofstream(run) << "a file";
  const LeakCheck nothing_left_behind;
  failure_on_all(run, {}, ErrorCode::kAlreadyExists, [](CheckpointManager& manager) { save_steps(manager, {1}); });
}

TEST_CASE_FIXTURE(RunOnDisk, "manager: ranks that save different or negative steps are told so, and can go on") {
  const std::string text = failure_on_all(run, {}, ErrorCode::kMismatch, [](CheckpointManager& manager) {
    const std::int64_t own = 10 + manager.world().rank();
    manager.save(own, state_of_step(1, manager.world()));
  });
  CHECK_MESSAGE(text.find("step 11") != std::string::npos, text);
  failure_on_all(run, {}, ErrorCode::kInvalidArgument, [](CheckpointManager& manager) { save_steps(manager, {-1}); });
  managed(run, {}, [](CheckpointManager& manager) {
    CHECK_THROWS_AS(save_steps(manager, {-1}), CheckpointException);
    save_steps(manager, {5});
    check_kept(manager, Names{"step_5"});
  });
}

TEST_CASE_FIXTURE(RunOnDisk, "manager: the latest is the one committed last, whatever the steps say") {
  managed(run, {}, [](CheckpointManager& manager) {
    save_steps(manager, {50, 100, 60});
    check_kept(manager, Names{"step_60", "step_100", "step_50"});
    CHECK(manager.latest()->step == 60);
    CHECK(manager.latest_valid()->checkpoint.name == "step_60");
  });
  CHECK(restored_step(run) == 60);
}

TEST_CASE_FIXTURE(RunOnDisk, "manager: no checkpoint is saved over, neither Cairn's nor another's") {
  fs::create_directories(run);
  fs::copy(CAIRN_TEST_DATA "/pytorch-2.11/single", place("step_7"), fs::copy_options::recursive);
  const auto before = fs::file_size(place("step_7/.metadata"));
  managed(run, keeping_last(2), [](CheckpointManager& manager) {
    save_steps(manager, {5, 5, 7, 7});
    check_kept(manager, Names{"step_7.3", "step_7.2"});
    CHECK(manager.latest()->step == 7);
  });
  CHECK(fs::file_size(place("step_7/.metadata")) == before);
  CHECK(restored_step(run) == 7);
}

TEST_CASE_FIXTURE(RunOnDisk, "manager: PyTorch's checkpoints and others' files are neither the latest nor removed") {
  fs::create_directories(place("step_9"));
  fs::copy(CAIRN_TEST_DATA "/pytorch-2.11/single", place("step_1"), fs::copy_options::recursive);
  std::ofstream(place("step_9/notes.txt")) << "mine";
  std::ofstream(place("step_4")) << "a file of that name";
  std::ofstream(place("log.txt")) << "mine";
  managed(run, keeping_last(1), [&](CheckpointManager& manager) {
    StateDict state = state_of_step(0, manager.world());
    CHECK_FALSE(manager.restore_latest(state).has_value());
    save_steps(manager, {2, 3});
  });
  on_all_ranks(kManagedRanks, [&](World& world) { Checkpointer(world).save(state_of_step(8, world), place("best")); });
  managed(run, keeping_last(1), [&](CheckpointManager& manager) {
    save_steps(manager, {5, 6});
    check_kept(manager, Names{"step_6", "best"});
    CHECK(manager.retention_faults().empty());
  });
  for (const char* name : {"step_1/.metadata", "step_9/notes.txt", "step_4", "log.txt"}) CHECK(fs::exists(place(name)));
  CHECK_FALSE(fs::exists(place("step_5")));
}

TEST_CASE("manager: retention keeps the last, every n-th, the best and the pinned, in directories and in memory") {
  const TemporaryDirectory directory;
  forget_memory("manager");
  for (const std::string& run : {directory.path() + "/run", std::string("mem://manager/run")}) {
    CAPTURE(run);
    const CapturedLog log(LogLevel::kDebug);
    CheckpointManagerOptions options = keeping_last(2);
    options.retention.keep_every = 10;
    options.retention.keep_best = 1;
    options.retention.metric = "loss";
    options.user_metadata["git_revision"] = "abc";
    managed(run, options, [](CheckpointManager& manager) {
      const std::map<std::int64_t, double> losses{{8, 0.5}, {9, 0.3}, {10, 0.4}, {11, 0.35}, {12, NAN}, {13, 0.6}, {14, 0.31}};
      for (const auto& [step, loss] : losses) {
        // Rank 0's count.
        manager.save(step, state_of_step(step, manager.world()), {{{"loss", loss + manager.world().rank()}}, {}});
        if (step == 11 && manager.world().rank() == 0) manager.pin("step_11");
      }
      check_kept(manager, Names{"step_14", "step_13", "step_11", "step_10", "step_9"});
      CHECK(manager.latest()->annotations.metrics.at("loss") == 0.31);
      CHECK(manager.latest()->annotations.user_metadata.at("git_revision") == "abc");
      CHECK(manager.is_pinned("step_11"));
      CHECK(manager.retention_faults().empty());
    });
    CHECK(log.text().find("debug rank 0: removed " + run + "/step_8\n") != std::string::npos);
    managed(run, options, [](CheckpointManager& manager) {
      if (manager.world().rank() == 0) manager.unpin("step_11");
      save_steps(manager, {15});
      check_kept(manager, Names{"step_15", "step_14", "step_10", "step_9"});
    });
  }
  CHECK_FALSE(fs::exists(directory.path() + "/run/step_8"));
  forget_memory("manager");
}

TEST_CASE_FIXTURE(RunOnDisk, "manager: what is damaged is passed over, by all ranks alike, and it says why") {
  managed(run, {}, [](CheckpointManager& manager) { save_steps(manager, {1, 2, 3, 4, 5}); });
  flip_first_byte(data_file_in(place("step_5")));                                            // only reading tells
  fs::remove(data_file_in(place("step_4")));                                                 // looking tells
  fs::resize_file(place("step_3/.metadata"), fs::file_size(place("step_3/.metadata")) - 1);  // no one knows when it was
  managed(run, {}, [](CheckpointManager& manager) {
    StateDict state = state_of_step(0, manager.world());
    const auto restored = manager.restore_latest(state);
    REQUIRE(restored.has_value());
    CHECK(step_in(state, manager.world()) == 2);
    const auto valid = manager.latest_valid();
    REQUIRE(valid.has_value());
    CHECK(manager.latest()->name == "step_5");
    for (const auto& found : {*restored, *valid}) {
      CHECK(found.checkpoint.name == "step_2");
      REQUIRE(found.passed_over.size() == 3);
      CHECK(found.passed_over[0].name == "step_3");
      CHECK(found.passed_over[1].name == "step_5");
      CHECK(found.passed_over[1].why.find(".distcp") != std::string::npos);
      CHECK(found.passed_over[2].name == "step_4");
      for (const auto& one : found.passed_over) CHECK_FALSE(one.why.empty());
    }
  });
  fs::remove(data_file_in(place("step_2")));
  fs::remove(data_file_in(place("step_1")));
  const std::string text = failure_on_all(run, {}, ErrorCode::kCorrupt, [](CheckpointManager& manager) {
    CHECK(thrown_by([&] { manager.latest_valid(); }).code == ErrorCode::kCorrupt);
    StateDict state = state_of_step(0, manager.world());
    manager.restore_latest(state);
  });
  for (const char* name : {"step_1", "step_2", "step_3", "step_4", "step_5"})
    CHECK_MESSAGE(text.find(name) != std::string::npos, text);
}

TEST_CASE_FIXTURE(RunOnDisk, "manager: a state that does not fit is an error, and no reason to go further back") {
  managed(run, {}, [](CheckpointManager& manager) { save_steps(manager, {1, 2}); });
  failure_on_all(run, {}, ErrorCode::kNotFound, [](CheckpointManager& manager) {
    StateDict state{{"another", 0}};
    manager.restore_latest(state);
  });
  managed(run, {}, [](CheckpointManager& manager) {
    StateDict state = state_of_step(0, manager.world());
    LoadOptions options;
    options.coordinator_rank = 1;
    CHECK(thrown_by([&] { manager.restore_latest(state, options); }).code == ErrorCode::kInvalidArgument);
  });
}

TEST_CASE_FIXTURE(RunOnDisk, "manager: the latest that is sound stays, even if later ones have lost their data since") {
  managed(run, keeping_last(1), [&](CheckpointManager& manager) {
    save_steps(manager, {1});
    const auto saving = manager.async_save(2, state_of_step(2, manager.world()));
    saving.result();
    if (manager.world().rank() == 0) {
      fs::remove(data_file_in(place("step_2")));
      CHECK(manager.wait_for_saves());
      check_kept(manager, Names{"step_2", "step_1"});
    }
  });
  CHECK(restored_step(run) == 1);
}

TEST_CASE_FIXTURE(RunOnDisk, "manager: what dead saves and removals have left goes with the next save, without any help") {
  managed(run, {}, [](CheckpointManager& manager) { save_steps(manager, {1, 2, 3}); });
  fs::remove(place("step_1/.metadata"));  // died in a removal
  const std::string dead = make_save_id(std::string(32, 'd'), "manager", 1);
  for (const char* name : {"step_4", "step_9"}) {  // died in a save
    const auto store = open_store(place(name));
    store->create_root();
    store->begin_attempt(dead);
    put_object(*store, data_file_name(0, 0, dead), "half of it");
  }
  CHECK(restored_step(run) == 3);
  CHECK(fs::exists(place("step_1")));  // looking removes nothing
  managed(run, {}, [](CheckpointManager& manager) {
    StateDict state = state_of_step(0, manager.world());
    manager.restore_latest(state);
    save_steps(manager, {4});
    check_kept(manager, Names{"step_4", "step_3", "step_2"});
    CHECK(manager.latest_valid()->checkpoint.name == "step_4");
  });
  CHECK_FALSE(fs::exists(place("step_1")));
  CHECK_FALSE(fs::exists(place("step_9")));
  CHECK_FALSE(open_store(place("step_4"))->exists(data_file_name(0, 0, dead)));
  CHECK(open_store(place("step_4"))->open_attempts().empty());
}

TEST_CASE_FIXTURE(RunOnDisk, "manager: two managers on one run lose no checkpoint that either has saved") {
  on_all_ranks(kManagedRanks, [&](World& world) {
    CheckpointManagerOptions options;
    CheckpointManager one(world, run, options);
    options.name = "another";
    CheckpointManager two(world, run, options);
    for (std::int64_t step = 1; step <= 3; ++step) {
      save_steps(one, {step});
      save_steps(two, {step});
    }
    CHECK(names_in(one) == Names{"step_3.2", "step_3", "step_2.2", "step_2", "step_1.2", "step_1"});
    CHECK(two.latest_valid()->passed_over.empty());
  });
}

TEST_CASE_FIXTURE(ControlledRun, "manager: retention that fails is reported, fails no save, and is tried again") {
  managed(
      run, keeping_last(1),
      [&](CheckpointManager& manager) {
        save_steps(manager, {1});
        control->before = [](const std::string& operation) {
          if (operation == "retract") throw Error(ErrorCode::kPermission, "the store keeps what it has");
        };
        save_steps(manager, {2});
        check_kept(manager, Names{"step_2", "step_1"});
        REQUIRE(manager.retention_faults().size() == 1);
        CHECK(manager.retention_faults()[0].name == "step_1");
        CHECK(manager.retention_faults()[0].why == "the store keeps what it has");
        // Beyond the record: it does not exist any more, and what is left of it goes the next time.
        control->before = [](const std::string& operation) {
          if (operation == "remove") throw StoreFault(operation);
        };
        save_steps(manager, {3});
        check_kept(manager, Names{"step_3"});
        CHECK(manager.retention_faults().size() == 2);
        CHECK_FALSE(open_store(memory + "/step_1")->list().empty());
        control->before = nullptr;
        save_steps(manager, {4});
        check_kept(manager, Names{"step_4"});
        CHECK(manager.retention_faults().empty());
        CHECK(open_store(memory + "/step_1")->list().empty());
      },
      1);
}

TEST_CASE_FIXTURE(ControlledRun, "manager: a save in the background that the grace period does not suffice for is ended") {
  // The store holds it until it has been told to end.
  class OpensOnCancel final : public Observer {
   public:
    explicit OpensOnCancel(std::shared_ptr<StoreControl> control) : control_(std::move(control)) {}
    void on_event(const ObservedEvent& event) noexcept override {
      if (event.kind == EventKind::kHandled && event.name == "CancelCall") control_->open_gate();
    }

   private:
    const std::shared_ptr<StoreControl> control_;
  };
  WorldOptions world_options;
  world_options.observer = std::make_shared<OpensOnCancel>(control);
  CheckpointManagerOptions options;
  options.save_on_signal = {SIGUSR1};
  options.grace_period = std::chrono::milliseconds(0);
  CheckpointManager manager(World::single(world_options), run, options);
  control->close_gate();
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

TEST_CASE("manager: what is not saved within the grace period is reported, and the checkpoint before it stands") {
  forget_memory("manager");
  CheckpointManagerOptions options;
  options.save_on_signal = {SIGUSR2};
  options.grace_period = std::chrono::milliseconds(0);
  managed(
      "mem://manager/grace", options,
      [](CheckpointManager& manager) {
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
      },
      1);
  forget_memory("manager");
}

TEST_CASE_FIXTURE(RunOnDisk, "manager: a run of four ranks goes on at one") {
  managed(
      run, {},
      [](CheckpointManager& manager) {
        save_steps(manager, {1, 2});
      },
      4);
  managed(
      run, {},
      [](CheckpointManager& manager) {
        StateDict state = state_of_step(0, manager.world());
        REQUIRE(manager.restore_latest(state).has_value());
        CHECK(step_in(state, manager.world()) == 2);
        save_steps(manager, {3});
        CHECK(manager.latest()->name == "step_3");
      },
      1);
}
