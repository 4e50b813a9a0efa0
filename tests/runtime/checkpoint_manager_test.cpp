// Runs and their checkpoints: names, retention, and the checkpoint from which a run resumes.
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <optional>

#include <cairn/tests/support/torch.hpp>  // before the headers that use doctest

#include <cairn/base/save_id.hpp>
#include <cairn/runtime/checkpoints/checkpointer.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/presence.hpp>
#include <cairn/storage/runs/run_cleanup.hpp>
#include <cairn/storage/stores/memory_store.hpp>
#include <cairn/tests/runtime/managed_run.hpp>
#include <cairn/tests/support/captured_log.hpp>
#include <cairn/tests/support/controlled_run.hpp>
#include <cairn/tests/support/gate.hpp>
#include <cairn/tests/support/leak_check.hpp>
#include <cairn/tests/support/thrown.hpp>
#include <cairn/tests/support/wrapped_store.hpp>

using namespace cairn;
using namespace cairn::testing;
namespace fs = std::filesystem;

namespace {

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

// While it lives, the modes of files apply to this process, as they do not to root.
struct AsNobody {
  AsNobody() {
    if (was_root) REQUIRE(::setresuid(65534, 65534, 0) == 0);
  }
  ~AsNobody() {
    if (was_root) CHECK(::setresuid(0, 0, 0) == 0);
  }
  AsNobody(const AsNobody&) = delete;
  AsNobody& operator=(const AsNobody&) = delete;

  const bool was_root = ::geteuid() == 0;
};

// A run into which PyTorch saved checkpoints.
struct RunOfPyTorch : RunOnDisk {
  void put(const std::string& name) const {
    fs::create_directories(run);
    fs::copy(CAIRN_TEST_DATA "/pytorch-2.11/single", place(name), fs::copy_options::recursive);
  }

  // The names and shapes of PyTorch's state, without its values.
  static StateDict blank(const World& world) {
    const auto rows = ShardedTensor::distribute(torch::zeros({8, 4}), over_all_ranks(world.size()), world.rank());
    return {{"model", Dict{{"0.weight", rows}, {"1.weight", torch::zeros({9, 4})}, {"2.weight", torch::zeros({10, 4})}}},
            {"step", 0}};
  }

  // Returns whether `state`, made by `blank`, holds PyTorch's values now.
  static bool is_pytorchs(const StateDict& state, const World& world) {
    const auto value_of = [](std::int64_t rows, double plus) { return counting({rows, 4}) * 0.25 + plus; };
    const auto expected = ShardedTensor::distribute(value_of(8, 0), over_all_ranks(world.size()), world.rank());
    const Dict& model = state.at("model").dict();
    return state.at("step").to_int() == 5 &&
           torch::equal(model.at("0.weight").sharded().local_shards().at(0).tensor, expected.local_shards().at(0).tensor) &&
           torch::equal(model.at("1.weight").tensor(), value_of(9, 1)) &&
           torch::equal(model.at("2.weight").tensor(), value_of(10, 2));
  }
};

}  // namespace

TEST_CASE("manager: contradictory options and a taken name are refused") {
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
  CHECK(refused([](auto& options) { options.ask_every = std::chrono::milliseconds(-1); }));
  CHECK(refused([](auto& options) { options.ask_every_steps = -1; }));
  CHECK(refused([](auto& options) { options.clock = nullptr; }));
  CHECK(refused([](auto& options) { options.save_on_signal = {SIGKILL}; }));
  CHECK(refused([](auto& options) { options.user_metadata["metric.loss"] = "1"; }));
  CHECK(thrown_by([&] { CheckpointManager(world, "nowhere://x"); }).code == ErrorCode::kInvalidArgument);
  const auto unreadable = thrown_by([&] { CheckpointManager(world, "mem://manager/bad\xff\xfe\n"); });
  CHECK(unreadable.code == ErrorCode::kInvalidArgument);
  CHECK_MESSAGE(unreadable.says("mem://manager/bad\\xff\\xfe\\x0a"), unreadable.what);
  CHECK(unreadable.what.find_first_of("\xff\xfe\n") == std::string::npos);
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

TEST_CASE_FIXTURE(RunOnDisk, "manager: PyTorch's checkpoints and others' files are never removed") {
  fs::create_directories(place("step_9"));
  fs::copy(CAIRN_TEST_DATA "/pytorch-2.11/single", place("step_1"), fs::copy_options::recursive);
  std::ofstream(place("step_9/notes.txt")) << "mine";
  std::ofstream(place("step_4")) << "a file of that name";
  std::ofstream(place("log.txt")) << "mine";
  managed(run, keeping_last(1), [](CheckpointManager& manager) { save_steps(manager, {2, 3}); });
  on_all_ranks(kManagedRanks, [&](World& world) { Checkpointer(world).save(state_of_step(8, world), place("best")); });
  managed(run, keeping_last(1), [&](CheckpointManager& manager) {
    save_steps(manager, {5, 6});
    check_kept(manager, Names{"step_6", "best"});
    CHECK(manager.retention_faults().empty());
  });
  for (const char* name : {"step_1/.metadata", "step_9/notes.txt", "step_4", "log.txt"}) CHECK(fs::exists(place(name)));
  CHECK_FALSE(fs::exists(place("step_5")));
}

TEST_CASE("manager: retention keeps the last, every n-th, the best and the pinned") {
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
        // Rank 0's metrics are the ones that are kept.
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
  flip_first_byte(data_file_in(place("step_5")));                                            // only reading the data detects this
  fs::remove(data_file_in(place("step_4")));                                                 // looking for the file detects this
  fs::resize_file(place("step_3/.metadata"), fs::file_size(place("step_3/.metadata")) - 1);  // its place in the order is unknown
  managed(run, {}, [](CheckpointManager& manager) {
    StateDict state = state_of_step(0, manager.world());
    for (const auto& found : {manager.restore_latest(state), manager.latest_valid()})
      check_found(found, "step_2", {{"step_3", ""}, {"step_5", ".distcp"}, {"step_4", ""}});
    CHECK(step_in(state, manager.world()) == 2);
    CHECK(manager.latest()->name == "step_5");
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

TEST_CASE_FIXTURE(RunOnDisk, "manager: the latest sound checkpoint stays if later ones lose their data") {
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

TEST_CASE_FIXTURE(ControlledRun, "manager: a checkpoint that cannot be removed is logged once, not after every save") {
  const CapturedLog log;
  managed(
      run, keeping_last(1),
      [&](CheckpointManager& manager) {
        control->before = [](const std::string& operation) {
          if (operation == "retract") throw Error(ErrorCode::kPermission, "the store keeps what it has");
        };
        save_steps(manager, {1, 2, 3, 4});
        manager.wait_for_saves();
        control->before = nullptr;
      },
      1);
  const std::string text = log.text(), first = "step_1: the store keeps what it has";
  REQUIRE(text.find(first) != std::string::npos);
  CHECK(text.find(first) == text.rfind(first));
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
        // The removal fails after it has removed the record. The checkpoint no longer exists, and
        // the next clean-up removes the rest.
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

TEST_CASE_FIXTURE(ControlledRun, "manager: clean-up precedes the first save and one after a failure") {
  const auto fail_with_no_space = [](const std::string& operation) {
    if (operation == "create") throw Error(ErrorCode::kNoSpace, "the disk is full");
  };
  managed(run, {}, [](CheckpointManager& manager) { save_steps(manager, {1, 2, 3}); });
  managed(run, keeping_last(2), [&](CheckpointManager& manager) {
    if (manager.world().rank() == 0) control->before = fail_with_no_space;
    CHECK_THROWS_AS(save_steps(manager, {4}), CheckpointException);
    check_kept(manager, Names{"step_3", "step_2"});
  });
  control->before = nullptr;
  managed(
      run, keeping_last(1),
      [&](CheckpointManager& manager) {
        save_steps(manager, {4});
        check_kept(manager, Names{"step_4"});
        control->before = [](const std::string& operation) {
          if (operation == "retract") throw Error(ErrorCode::kUnavailable, "not now");
        };
        save_steps(manager, {5});
        check_kept(manager, Names{"step_5", "step_4"});
        control->before = fail_with_no_space;
        CHECK_THROWS_AS(save_steps(manager, {6}), CheckpointException);
        check_kept(manager, Names{"step_5", "step_4"});  // the save before it succeeded, so no clean-up runs before this one
        CHECK_THROWS_AS(save_steps(manager, {6}), CheckpointException);
        check_kept(manager, Names{"step_5"});
      },
      1);
}

TEST_CASE_FIXTURE(ControlledRun, "manager: the restored checkpoint stays before a save if later ones are damaged") {
  managed(
      run, {},
      [](CheckpointManager& manager) {
        save_steps(manager, {1, 2, 3});
      },
      1);
  const auto damaged = open_store(memory + "/step_3");
  for (const ObjectInfo& file : damaged->list("__")) {
    std::string content = get_object(*damaged, file.name);
    content.front() = static_cast<char>(content.front() ^ 1);  // only reading the data detects this
    replace_object(*damaged, file.name, content);
  }
  managed(
      run, keeping_last(1),
      [&](CheckpointManager& manager) {
        StateDict state = state_of_step(0, manager.world());
        REQUIRE(manager.restore_latest(state).has_value());
        CHECK(step_in(state, manager.world()) == 2);
        control->before = [](const std::string& operation) {
          if (operation == "create") throw Error(ErrorCode::kNoSpace, "the disk is full");
        };
        for (int tries = 0; tries < 2; ++tries) CHECK_THROWS_AS(save_steps(manager, {4}), CheckpointException);
        check_kept(manager, Names{"step_3", "step_2"});
        control->before = nullptr;
        save_steps(manager, {4});
        check_kept(manager, Names{"step_4"});
      },
      1);
}

TEST_CASE_FIXTURE(ControlledRun, "manager: retention ends before the next asynchronous save begins") {
  std::mutex mutex;
  Names order;
  control->before = [&](const std::string& operation) {
    std::lock_guard lock(mutex);
    if (operation == "begin_attempt" || operation == "retract") order.push_back(operation);
  };
  managed(
      run, keeping_last(1),
      [](CheckpointManager& manager) {
        for (std::int64_t step = 1; step <= 4; ++step) manager.async_save(step, state_of_step(step, manager.world()));
        manager.wait_for_saves();
        check_kept(manager, Names{"step_4"});
        CHECK(manager.retention_faults().empty());
      },
      1);
  CHECK(order == Names{"begin_attempt", "begin_attempt", "retract", "begin_attempt", "retract", "begin_attempt", "retract"});
}

TEST_CASE_FIXTURE(ControlledRun, "manager: slow removal delays neither the trainer nor the start of a save") {
  Gate slow;
  managed(
      run, keeping_last(1),
      [&](CheckpointManager& manager) {
        save_steps(manager, {1});
        control->before = [&](const std::string& operation) {
          if (operation == "remove") slow.pass();
        };
        manager.save(2, state_of_step(2, manager.world()));
        slow.wait_until_reached();
        CHECK(names_in(manager) == Names{"step_2"});  // the record is removed first
        const auto saving = manager.async_save(3, state_of_step(3, manager.world()));
        CHECK_FALSE(saving.done());  // it waits for the space that the removal frees
        CHECK_FALSE(manager.wait_for_saves(std::chrono::milliseconds(0)));
        slow.open();
        saving.result();
        check_kept(manager, Names{"step_3"});
        CHECK(manager.retention_faults().empty());
      },
      1);
}

TEST_CASE_FIXTURE(ControlledRun, "manager: an interrupted clean-up removes nothing more; the next one does") {
  managed(run, {}, [](CheckpointManager& manager) { save_steps(manager, {1, 2, 3, 4}); });
  std::atomic<bool> signalled{false};
  RunCleanup cleanup(RunDirectory(run), keeping_last(1).retention, 0,
                     [&] { return signalled ? std::optional<std::chrono::milliseconds>(std::chrono::hours(1)) : std::nullopt; });
  control->before = [&](const std::string& operation) {
    if (operation == "retract") signalled = true;
  };
  const auto clean_up = [&] {
    signalled = false;
    cleanup.start({}, {});
    cleanup.wait(std::chrono::milliseconds::max());
    return RunDirectory(run).list().checkpoints.size();
  };
  const auto has_files = [&](const char* name) { return !open_store(memory + "/" + name)->list().empty(); };
  CHECK(clean_up() == 3);
  CHECK(has_files("step_1"));  // it stops between the files, too
  CHECK(cleanup.has_failed());
  CHECK(clean_up() == 2);
  CHECK_FALSE(has_files("step_1"));
  control->before = nullptr;
  CHECK(clean_up() == 1);
  CHECK_FALSE(has_files("step_2"));
  CHECK_FALSE(cleanup.has_failed());
  CHECK(cleanup.faults().empty());
}

TEST_CASE_FIXTURE(RunOnDisk, "manager: saving and cleaning up change nothing that a link leads to") {
  const std::string dead = make_save_id(std::string(32, 'd'), "manager", 1);
  const std::string outside = directory.path() + "/outside";
  const auto store = open_store(outside);
  store->create_root();
  store->begin_attempt(dead);
  put_object(*store, data_file_name(0, 0, dead), "precious");
  const auto listed = [&] {
    Names names;
    for (const auto& entry : fs::recursive_directory_iterator(outside)) names.push_back(entry.path().string());
    std::sort(names.begin(), names.end());
    return names;
  };
  const Names before = listed();
  fs::create_directory(run);
  fs::create_directory_symlink(outside, place("step_2"));
  fs::create_directory_symlink(outside, place("step_9"));
  managed(run, keeping_last(1), [](CheckpointManager& manager) {
    save_steps(manager, {1, 2});
    check_kept(manager, Names{"step_2.2"});
  });
  CHECK(listed() == before);
  CHECK(before.size() == 2);
}

TEST_CASE_FIXTURE(RunOnDisk, "manager: what is passed over is logged, with the steps that are lost") {
  managed(run, {}, [](CheckpointManager& manager) { save_steps(manager, {4, 8}); });
  flip_first_byte(data_file_in(place("step_8")));
  for (const char* name : {"step_9223372036854775808", "step_9999999999999999999", "step_3.9999999999999999999"}) {
    fs::create_directory(place(name));  // a number that does not fit: not the manager's
    std::ofstream(place(name) + "/.metadata") << "x";
  }
  const CapturedLog log;
  CHECK(restored_step(run) == 4);
  const std::string text = log.text();
  const std::string expected = "warning rank 0: restored step_4, 4 steps earlier than the latest checkpoint; passed over: step_8: ";
  CHECK_MESSAGE(text.find(expected) != std::string::npos, text);
  CHECK(text.find("rank 1: restored") == std::string::npos);
}

TEST_CASE_FIXTURE(RunOfPyTorch, "manager: a run resumes from PyTorch's checkpoint of the largest step") {
  put("step_2");
  put("step_6");
  CheckpointManagerOptions options = keeping_last(1);
  options.save_every_steps = 1;
  managed(run, options, [&](CheckpointManager& manager) {
    StateDict state = blank(manager.world());
    const auto restored = manager.restore_latest(state);
    REQUIRE(restored.has_value());
    CHECK(restored->checkpoint.name == "step_6");
    CHECK(restored->checkpoint.checkpoint_id == place("step_6"));
    CHECK(restored->checkpoint.step == 6);
    CHECK(restored->checkpoint.save_id.empty());
    CHECK(restored->checkpoint.sequence == 0);
    CHECK(restored->passed_over.empty());
    CHECK(is_pytorchs(state, manager.world()));
    CHECK_FALSE(manager.should_save(6));
    CHECK(manager.should_save(7));
    CHECK_FALSE(manager.latest().has_value());
    CHECK(manager.latest_valid()->checkpoint.name == "step_6");
    for (const std::int64_t step : {7, 8}) manager.save(step, state);
    check_kept(manager, Names{"step_8"});
  });
  const auto restored_name = [&] {
    std::mutex mutex;
    std::set<std::string> names;
    managed(run, {}, [&](CheckpointManager& manager) {
      StateDict state = blank(manager.world());
      const auto restored = manager.restore_latest(state);
      REQUIRE(restored.has_value());
      CHECK(restored->passed_over.empty());
      CHECK(is_pytorchs(state, manager.world()));
      std::lock_guard lock(mutex);
      names.insert(restored->checkpoint.name);
    });
    REQUIRE(names.size() == 1);
    return *names.begin();
  };
  CHECK(restored_name() == "step_8");
  put("step_8.2");  // as many steps as Cairn's latest
  CHECK(restored_name() == "step_8");
  put("step_12");
  CHECK(restored_name() == "step_12");
  for (const char* name : {"step_2/.metadata", "step_6/.metadata"}) CHECK(fs::exists(place(name)));
}

TEST_CASE_FIXTURE(RunOfPyTorch, "manager: PyTorch's checkpoint of unknown order is used if Cairn's are damaged") {
  managed(run, {}, [&](CheckpointManager& manager) {
    for (const std::int64_t step : {50, 100, 60}) manager.save(step, blank(manager.world()));
  });
  put("step_7");
  put("step_80");
  const auto restore = [&](const std::string& expected, const Names& passed_over) {
    const CapturedLog log;
    managed(run, {}, [&](CheckpointManager& manager) {
      StateDict state = blank(manager.world());
      const auto restored = manager.restore_latest(state);
      REQUIRE(restored.has_value());
      CHECK(restored->checkpoint.name == expected);
      Names names;
      for (const PassedOver& one : restored->passed_over) names.push_back(one.name);
      CHECK(names == passed_over);
      CHECK(is_pytorchs(state, manager.world()) == (expected == "step_80"));
    });
    return log.text();
  };
  const std::string unknown =
      "passed over: step_80: PyTorch saved it, and whether before or after step_60 is unknown: Cairn has also saved step 100";
  const std::string first = restore("step_60", Names{"step_80"});
  CHECK_MESSAGE(first.find(unknown) != std::string::npos, first);
  for (const char* name : {"step_50", "step_60", "step_100"}) fs::remove(data_file_in(place(name)));
  const std::string second = restore("step_80", Names{"step_60", "step_100", "step_50"});
  CHECK_MESSAGE(second.find("restored step_80, 20 steps earlier than the latest checkpoint") != std::string::npos, second);
}

TEST_CASE_FIXTURE(RunOfPyTorch, "manager: without a step in Cairn's latest, the order of PyTorch's is unknown") {
  on_all_ranks(kManagedRanks, [&](World& world) { Checkpointer(world).save(blank(world), place("best")); });
  put("step_9");
  managed(run, {}, [&](CheckpointManager& manager) {
    StateDict state = blank(manager.world());
    check_found(manager.restore_latest(state), "best", {{"step_9", "before or after best is unknown: best has no step"}});
  });
}

TEST_CASE_FIXTURE(RunOfPyTorch, "manager: parts that ranks saved for themselves are reported, and kept") {
  SaveOptions alone;
  alone.use_collectives = false;
  alone.step = 6;
  on_all_ranks(kManagedRanks, [&](World& world) { Checkpointer(world).save(blank(world), place("step_6"), alone); });
  managed(run, {}, [&](CheckpointManager& manager) { manager.save(3, blank(manager.world())); });
  managed(run, {}, [&](CheckpointManager& manager) {
    StateDict state = blank(manager.world());
    check_found(manager.restore_latest(state), "step_3", {{"step_6", "cairn merge"}});
    LoadOptions own;
    own.use_collectives = false;
    CHECK(thrown_by([&] { manager.restore_latest(state, own); }).code == ErrorCode::kInvalidArgument);
    Checkpointer(manager.world(), "own").load(state, place("step_6"), own);
  });
}

TEST_CASE_FIXTURE(RunOfPyTorch, "manager: PyTorch's checkpoint with one record for each rank is restored") {
  put("step_6");
  fs::rename(place("step_6/.metadata"), place("step_6/__0.metadata"));
  managed(run, {}, [&](CheckpointManager& manager) {
    StateDict state = blank(manager.world());
    check_found(manager.restore_latest(state), "step_6", {});
    CHECK(is_pytorchs(state, manager.world()));
    LoadOptions own;
    own.use_collectives = false;
    CHECK(thrown_by([&] {
            Checkpointer(manager.world(), "own").load(state, place("step_6"), own);
          }).says("PyTorch wrote one record for each rank"));
    manager.save(7, state);
  });
  CHECK(fs::exists(place("step_6/__0.metadata")));
}

TEST_CASE_FIXTURE(RunOfPyTorch, "manager: a damaged one of PyTorch's records of single ranks is reported") {
  const std::vector<std::string> files{place("step_6/__0.metadata"), place("step_6/__0_0.distcp")};
  fs::create_directories(place("step_6"));
  for (const std::string& file : files) std::ofstream(file) << "PyTorch's";
  const std::string text = failure_on_all(run, {}, ErrorCode::kCorrupt, [](CheckpointManager& manager) {
    StateDict state = blank(manager.world());
    manager.restore_latest(state);
  });
  CHECK_MESSAGE(text.find("step_6/__0.metadata") != std::string::npos, text);
  const auto passed_over_after = [&](std::int64_t step) {
    managed(run, {}, [&](CheckpointManager& manager) { manager.save(step, blank(manager.world())); });
    std::atomic<std::size_t> count{0};
    managed(run, {}, [&](CheckpointManager& manager) {
      StateDict state = blank(manager.world());
      const auto restored = manager.restore_latest(state);
      REQUIRE(restored.has_value());
      CHECK(restored->checkpoint.step == step);
      count += restored->passed_over.size();
    });
    return count.load();
  };
  CHECK(passed_over_after(3) == kManagedRanks);
  CHECK(passed_over_after(7) == 0);
  for (const std::string& file : files) CHECK(fs::exists(file));
}

TEST_CASE_FIXTURE(RunOfPyTorch, "manager: PyTorch's checkpoint that lacks data is passed over by all ranks") {
  managed(run, {}, [&](CheckpointManager& manager) { manager.save(3, blank(manager.world())); });
  put("step_5");
  fs::remove(place("step_5/__0_0.distcp"));
  put("step_6");
  fs::resize_file(place("step_6/__0_0.distcp"), fs::file_size(place("step_6/__0_0.distcp")) / 2);  // only reading detects this
  managed(run, {}, [&](CheckpointManager& manager) {
    StateDict state = blank(manager.world());
    for (const auto& found : {manager.restore_latest(state), manager.latest_valid()})
      check_found(found, "step_3", {{"step_6", "__0_0.distcp"}, {"step_5", "__0_0.distcp"}});
  });
}

TEST_CASE_FIXTURE(RunOfPyTorch, "manager: a warning names PyTorch's checkpoints that are not called step_<n>") {
  put("pretrained");
  const CapturedLog log;
  managed(run, {}, [&](CheckpointManager& manager) {
    StateDict state = blank(manager.world());
    CHECK_FALSE(manager.restore_latest(state).has_value());
  });
  const std::string expected = "warning rank 0: nothing was restored: " + run + " has no checkpoint of Cairn's";
  CHECK_MESSAGE(log.text().find(expected) != std::string::npos, log.text());
  CHECK_MESSAGE(log.text().find("Rename one of these to resume from it: pretrained") != std::string::npos, log.text());
}

TEST_CASE_FIXTURE(RunOfPyTorch, "manager: the warning of other names is one line and names at most ten") {
  for (const char* name : {"a\nforged", "broken", "c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8", "c9"}) put(name);
  std::ofstream(place("broken/.metadata")) << "noise";
  const CapturedLog log;
  managed(run, {}, [&](CheckpointManager& manager) {
    StateDict state = blank(manager.world());
    CHECK_FALSE(manager.restore_latest(state).has_value());
  });
  const std::string expected =
      "are used. Rename one of these to resume from it: a\\x0aforged, c0, c1, c2, c3, c4, c5, c6, c7. "
      "These cannot be read (cairn verify tells why): broken. There are 2 more\n";
  CHECK_MESSAGE(log.text().find(expected) != std::string::npos, log.text());
}

TEST_CASE_FIXTURE(RunOnDisk, "manager: a checkpoint is not taken for a run") {
  managed(run, {}, [](CheckpointManager& manager) { save_steps(manager, {4}); });
  const auto restore = [](CheckpointManager& manager) {
    StateDict state = state_of_step(0, manager.world());
    manager.restore_latest(state);
  };
  const std::string text = failure_on_all(place("step_4"), {}, ErrorCode::kPrecondition, restore);
  const std::string expected = "is a checkpoint, not a run: pass the directory that holds it, probably " + run;
  CHECK_MESSAGE(text.find(expected) != std::string::npos, text);
  failure_on_all(place("step_4"), {}, ErrorCode::kPrecondition, [](CheckpointManager& manager) { save_steps(manager, {5}); });
  CHECK_FALSE(fs::exists(place("step_4/step_5")));
  SaveOptions alone;
  alone.use_collectives = false;
  alone.step = 6;
  on_all_ranks(kManagedRanks, [&](World& world) { Checkpointer(world).save(state_of_step(6, world), place("step_6"), alone); });
  const std::string of_parts = failure_on_all(place("step_6"), {}, ErrorCode::kPrecondition, restore);
  CHECK_MESSAGE(of_parts.find("is a checkpoint, not a run") != std::string::npos, of_parts);
}

TEST_CASE_FIXTURE(RunOnDisk, "manager: restore_latest reports a run that cannot be written to") {
  std::ofstream(directory.path() + "/file") << "x";
  const std::string nowhere = directory.path() + "/file/run";
  CheckpointManagerOptions options;
  options.save_every_steps = 10;
  const std::string text = failure_on_all(nowhere, options, ErrorCode::kPermission, [](CheckpointManager& manager) {
    StateDict state = state_of_step(0, manager.world());
    manager.restore_latest(state);
  });
  CHECK_MESSAGE(text.find("cannot save checkpoints: cannot create files in " + nowhere) != std::string::npos, text);
  CHECK_MESSAGE(text.find("; the run is " + nowhere) != std::string::npos, text);
}

TEST_CASE_FIXTURE(RunOnDisk, "manager: an unusable place is left alone, and the next name is taken") {
  managed(run, {}, [](CheckpointManager& manager) { save_steps(manager, {1, 2, 3}); });
  for (const char* name : {"step_2", "step_3"}) fs::remove(place(name) + "/.metadata");
  fs::create_directory(place("step_2/.metadata"));
  fs::create_symlink("nowhere", place("step_3/.metadata"));
  const std::string kept_data = data_file_in(place("step_3"));
  std::ofstream(place("step_4")) << "a file";
  REQUIRE(::mkfifo(place("step_5").c_str(), 0600) == 0);
  fs::create_symlink("nowhere", place("step_6"));
  fs::create_symlink("step_7", place("step_7"));  // a loop of symbolic links
  managed(run, keeping_last(10), [&](CheckpointManager& manager) {
    StateDict state = state_of_step(0, manager.world());
    check_found(manager.restore_latest(state), "step_1", {{"step_2", ".metadata"}, {"step_3", ".metadata"}});
    save_steps(manager, {2, 3, 4, 5, 6, 7});
    check_kept(manager, Names{"step_7.2", "step_6.2", "step_5.2", "step_4.2", "step_3.2", "step_2.2", "step_1"});
  });
  CHECK(fs::exists(kept_data));
  CHECK(restored_step(run) == 7);
}

TEST_CASE_FIXTURE(RunOnDisk, "manager: a read-only place is left alone, and the next name is taken") {
  fs::permissions(directory.path(), fs::perms::all);
  const AsNobody modes_apply;
  fs::create_directories(place("step_2"));
  std::ofstream(place("step_2/notes.txt")) << "mine";
  fs::permissions(place("step_2"), fs::perms::owner_read | fs::perms::owner_exec);
  managed(run, keeping_last(2), [](CheckpointManager& manager) {
    save_steps(manager, {1, 2});
    check_kept(manager, Names{"step_2.2", "step_1"});
  });
  fs::permissions(place("step_2"), fs::perms::owner_all);
}

TEST_CASE_FIXTURE(RunOnDisk, "manager: a failed save in an unlistable run says why it leaves no report") {
  fs::permissions(directory.path(), fs::perms::all);
  const AsNobody modes_apply;
  const CapturedLog log;
  fs::create_directories(run);
  fs::permissions(run, fs::perms::owner_write | fs::perms::owner_exec);
  managed(run, {}, [](CheckpointManager& manager) { CHECK_THROWS_AS(save_steps(manager, {1}), CheckpointException); });
  CHECK_MESSAGE(log.text().find("is left: the earlier reports cannot be listed") != std::string::npos, log.text());
  fs::permissions(run, fs::perms::owner_all);
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
        StateDict more = state;
        more["new"] = 7;
        LoadOptions partial;
        partial.planning.allow_partial_load = true;
        const auto restored = manager.restore_latest(more, partial);
        REQUIRE(restored.has_value());
        CHECK(restored->report.missing == std::vector<std::string>{"new"});
        REQUIRE(manager.restore_latest(state).has_value());
        CHECK(step_in(state, manager.world()) == 2);
        save_steps(manager, {3});
        CHECK(manager.latest()->name == "step_3");
      },
      1);
}
