// Restores and retention in runs with records that are missing, refused, removed meanwhile or
// damaged.
#include <filesystem>
#include <fstream>
#include <limits>

#include <cairn/tests/support/torch.hpp>  // before the headers that use doctest

#include <cairn/storage/format/names.hpp>
#include <cairn/storage/runs/retention.hpp>
#include <cairn/storage/runs/run_directory.hpp>
#include <cairn/tests/runtime/managed_run.hpp>
#include <cairn/tests/support/captured_log.hpp>
#include <cairn/tests/support/controlled_run.hpp>
#include <cairn/tests/support/thrown.hpp>

using namespace cairn;
using namespace cairn::testing;
namespace fs = std::filesystem;

namespace {

// Returns what `restore_latest` restores: a name, "nothing" or the error's text.
std::string restored_from(const std::string& run, CheckpointManagerOptions options = {}) {
  std::mutex mutex;
  std::set<std::string> outcomes;
  managed(run, options, [&](CheckpointManager& manager) {
    StateDict state = state_of_step(0, manager.world());
    std::string outcome = "nothing";
    try {
      if (const auto restored = manager.restore_latest(state)) outcome = restored->checkpoint.name;
    } catch (const CheckpointException& failed) {
      outcome = failed.what();
    }
    std::lock_guard lock(mutex);
    outcomes.insert(outcome);
  });
  REQUIRE(outcomes.size() == 1);
  return *outcomes.begin();
}

void damage(const std::string& place, bool cut) {
  for (const auto& entry : fs::directory_iterator(place)) {
    if (!save_id_of_file(entry.path().filename().string())) continue;
    if (cut) return fs::resize_file(entry.path(), fs::file_size(entry.path()) / 2);
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    const auto at = static_cast<std::streamoff>(fs::file_size(entry.path()) / 2);
    const char byte = static_cast<char>(file.seekg(at).get() ^ 1);
    file.seekp(at).put(byte);
    return;
  }
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE_FIXTURE(RunOnDisk, "restore: data without a record is a named error, and no save removes it") {
  managed(run, {}, [](CheckpointManager& manager) { save_steps(manager, {100, 200, 300}); });
  std::set<std::string> lost{"step_300"};
  std::string latest_whole = "step_200";
  SUBCASE("of the newest") {}
  SUBCASE("of the oldest") {
    lost = {"step_100"};
    latest_whole = "step_300";
  }
  SUBCASE("of all") {
    lost = {"step_100", "step_200", "step_300"};
    latest_whole.clear();
  }
  SUBCASE("of PyTorch's newest") {
    fs::create_directory(place("step_400"));
    std::ofstream(place("step_400/__0_0.distcp")) << "PyTorch's";
    lost = {"step_400"};
    latest_whole = "step_300";
  }
  for (const std::string& name : lost) fs::remove(place(name + "/.metadata"));
  const std::string refused = restored_from(run);
  for (const std::string& name : lost) CHECK_MESSAGE(has(refused, name), refused);
  CheckpointManagerOptions options = keeping_last(1);
  options.data_without_record = DataWithoutRecord::kUseNewestWhole;
  {
    const CapturedLog log;
    const std::string used = restored_from(run, options);
    CHECK_MESSAGE((latest_whole.empty() ? has(used, "none of the checkpoints") : used == latest_whole), used);
    for (const std::string& name : lost) CHECK_MESSAGE(has(log.text() + used, name + ": its data files have no"), log.text());
  }
  options.data_without_record = DataWithoutRecord::kStartAnew;
  const CapturedLog log;
  CHECK(restored_from(run, options) == "nothing");
  for (const std::string& name : lost) CHECK_MESSAGE(has(log.text(), name), log.text());
  managed(run, options, [](CheckpointManager& manager) { save_steps(manager, {1, 300, 400}); });
  for (const std::string& name : lost) {
    CAPTURE(name);
    bool has_data = false;
    for (const auto& entry : fs::directory_iterator(place(name))) has_data = has_data || entry.path().extension() == ".distcp";
    CHECK(has_data);
    CHECK_FALSE(fs::exists(place(name + "/.metadata")));
  }
}

TEST_CASE_FIXTURE(ControlledRun, "restore: a refused record is an error on all ranks, not a reason to go back") {
  managed(run, {}, [](CheckpointManager& manager) { save_steps(manager, {1, 2}); });
  for (const ErrorCode code : {ErrorCode::kPermission, ErrorCode::kUnavailable, ErrorCode::kDeadline}) {
    for (const char* object : {"step_2/.metadata", ".metadata"}) {  // as the run and as the checkpoint see it
      CAPTURE(to_string(code));
      std::atomic<int> refusals{1};
      control->before = [&](const std::string& operation) {
        if (operation == std::string("read ") + object && refusals-- > 0) throw Error(code, "ExpiredToken, says the store");
      };
      const std::string text = failure_on_all(run, {}, code, [](CheckpointManager& manager) {
        StateDict state = state_of_step(0, manager.world());
        manager.restore_latest(state);
      });
      CHECK_MESSAGE(has(text, "ExpiredToken"), text);
      control->before = nullptr;
      CHECK(restored_step(run) == 2);
    }
  }
}

TEST_CASE_FIXTURE(ControlledRun, "restore: a checkpoint that is removed at any moment is not missed") {
  managed(run, {}, [](CheckpointManager& manager) { save_steps(manager, {1, 2}); });
  std::size_t moments = 1;
  for (std::size_t moment = 0; moment < moments; ++moment) {
    CAPTURE(moment);
    // Another process saves step 3 and prunes the others, between two operations of this one.
    managed(memory, {}, [](CheckpointManager& manager) { save_steps(manager, {1, 2}); });
    std::atomic<std::size_t> operations{0};
    std::atomic<bool> busy{false};
    control->before = [&](const std::string&) {
      if (busy || operations++ != moment) return;
      busy = true;
      managed(memory, keeping_last(1), [](CheckpointManager& manager) { save_steps(manager, {3}); });
      busy = false;
    };
    const CapturedLog log;
    const std::string name = restored_from(run);
    control->before = nullptr;
    CHECK_MESSAGE((name.rfind("step_2", 0) == 0 || name.rfind("step_3", 0) == 0), name);
    CHECK_MESSAGE(!has(log.text(), "passed over"), log.text());
    moments = operations;
    for (const RunCheckpoint& checkpoint : RunDirectory(memory).list().checkpoints) RunDirectory(memory).remove(checkpoint);
  }
  CHECK(moments > 10);
}

TEST_CASE_FIXTURE(RunOnDisk, "retention: damaged checkpoints do not count towards keep_last") {
  for (const bool cut : {true, false}) {
    CAPTURE(cut);
    managed(run, {}, [](CheckpointManager& manager) { save_steps(manager, {1, 2, 3}); });
    for (const char* name : {"step_2", "step_3"}) damage(place(name), cut);
    managed(run, keeping_last(2), [](CheckpointManager& manager) {
      StateDict state = state_of_step(0, manager.world());
      CHECK(manager.restore_latest(state)->checkpoint.name == "step_1");
    });
    // Another process knows it as well. What a policy keeps in any case stays.
    managed(run, keeping_last(2), [](CheckpointManager& manager) {
      save_steps(manager, {4});
      check_kept(manager, Names{"step_4", "step_3", "step_1"});
    });
    damage(place("step_4"), cut);
    CHECK(restored_step(run) == 1);
    CHECK(fs::exists(place("step_4/.damaged")) != cut);
    fs::remove_all(run);
  }
}

TEST_CASE_FIXTURE(RunOnDisk, "retention: damage seen in only one read is not noted, and a note removes nothing") {
  managed(run, {}, [](CheckpointManager& manager) { save_steps(manager, {1, 2, 3}); });
  const RunDirectory directory_of_run(run);
  const RunCheckpoint latest = directory_of_run.list().checkpoints.front();
  const std::uint64_t all_bytes = std::numeric_limits<std::uint64_t>::max();
  CHECK(directory_of_run.find_damage(latest, {0}, all_bytes).empty());
  damage(place("step_3"), false);
  CHECK(directory_of_run.find_damage(latest, {1}, 10).empty());  // fewer bytes than a file has
  const std::string finding = directory_of_run.find_damage(latest, {1}, all_bytes);
  CHECK_MESSAGE(has(finding, ".distcp has "), finding);
  directory_of_run.note_damage(latest, finding);
  CHECK(directory_of_run.finding_of(latest) == finding);
  RunCheckpoint other = latest;
  other.head.save_id = directory_of_run.list().checkpoints.back().head.save_id;
  CHECK(directory_of_run.finding_of(other).empty());
  RetentionPolicy policy;
  policy.keep_last = 1;
  CHECK(look_at_retention(directory_of_run, policy).kept == std::set<std::string>{"step_2", "step_3"});
  policy.keep_last = 3;
  CHECK(look_at_retention(directory_of_run, policy).kept.size() == 3);
  directory_of_run.note_damage(latest, "");
  CHECK(directory_of_run.finding_of(latest).empty());
}

TEST_CASE_FIXTURE(RunOnDisk, "retention: a metric without finite values removes nothing, and is named") {
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  struct Row {
    const char* metric;
    std::vector<double> values;
    Names kept;
  };
  const std::vector<Row> rows{{"los", {1, 9, 8}, {"step_3", "step_2", "step_1"}},
                              {"loss", {nan, infinity, -infinity}, {"step_3", "step_2", "step_1"}},
                              {"loss", {1, nan, 8}, {"step_3", "step_1"}}};
  for (const Row& row : rows) {
    const CapturedLog log;
    CheckpointManagerOptions options = keeping_last(1);
    options.retention.keep_best = 1;
    options.retention.metric = row.metric;
    managed(run, options, [&](CheckpointManager& manager) {
      for (std::int64_t step = 1; step <= 3; ++step) {
        Annotations annotations;
        annotations.metrics["loss"] = row.values[static_cast<std::size_t>(step - 1)];
        manager.save(step, state_of_step(step, manager.world()), annotations);
        manager.wait_for_saves();
      }
      check_kept(manager, row.kept);
      if (manager.world().rank() == 0) CHECK((manager.retention_faults().size() == 1) == (row.kept.size() == 3));
    });
    CHECK_MESSAGE(has(log.text(), std::string("finite value of the metric \"") + row.metric + "\"") == (row.kept.size() == 3),
                  log.text());
    fs::remove_all(run);
  }
}

TEST_CASE_FIXTURE(RunOnDisk, "restore: a step is restored by its number, or is a named error on all ranks") {
  managed(run, {}, [&](CheckpointManager& manager) {
    save_steps(manager, {100, 200, 300});
    StateDict again = state_of_step(200, manager.world());
    again["step"] = 201;  // saved as step_200.2
    manager.save(200, again);
    StateDict state = state_of_step(0, manager.world());
    const ValidCheckpoint first = manager.restore(100, state);
    CHECK(first.checkpoint.name == "step_100");
    CHECK(first.checkpoint.step == 100);
    CHECK(state.at("step").to_int() == 100);
    CHECK_FALSE(manager.should_save(100));
    CHECK(manager.restore(200, state).checkpoint.name == "step_200.2");
    CHECK(state.at("step").to_int() == 201);
    const Thrown missing = thrown_by([&] { manager.restore(150, state); });
    CHECK_MESSAGE(missing.says("no checkpoint of " + run + " has step 150; the last of its steps are 300, 200, 100"), missing.what);
    CHECK(state.at("step").to_int() == 201);
  });
  damage(run + "/step_300", false);
  managed(run, {}, [&](CheckpointManager& manager) {
    StateDict state = state_of_step(0, manager.world());
    CHECK(thrown_by([&] { manager.restore(300, state); }).says("step_300"));  // and no other step instead
    CHECK(manager.restore(100, state).checkpoint.step == 100);
  });
}

TEST_CASE_FIXTURE(RunOnDisk, "retention: the best checkpoint is found by the metric of the policy") {
  CheckpointManagerOptions options;
  managed(run, options, [](CheckpointManager& manager) {
    CHECK(thrown_by([&] { manager.best(); }).code == ErrorCode::kPrecondition);
  });
  options.retention.metric = "loss";
  managed(run, options, [](CheckpointManager& manager) {
    CHECK_FALSE(manager.best());
    const double nan = std::numeric_limits<double>::quiet_NaN();
    for (const auto& [step, loss] : std::map<std::int64_t, double>{{1, 2.0}, {2, 0.5}, {3, nan}, {4, 0.5}, {5, 1.0}})
      manager.save(step, state_of_step(step, manager.world()), {{{"loss", loss}}, {}});
    manager.save(6, state_of_step(6, manager.world()));
    CHECK(manager.best()->step == 4);
  });
  options.retention.better = Better::kHigher;
  managed(run, options, [](CheckpointManager& manager) { CHECK(manager.best()->step == 1); });
}
