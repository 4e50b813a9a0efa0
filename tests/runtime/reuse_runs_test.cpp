// Runs whose checkpoints share files: retention, asynchronous saves, and ranks that differ.
#include <cairn/tests/support/torch.hpp>

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include <cairn/runtime/cairn.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/verify_checkpoint.hpp>
#include <cairn/tests/runtime/managed_run.hpp>
#include <cairn/tests/support/thrown.hpp>

namespace cairn::testing {
namespace {

std::set<ino_t> inodes_of(const std::string& checkpoint) {
  std::set<ino_t> found;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoint)) {
    struct stat status {};
    if (is_cairns_file(entry.path().filename().string()) && ::stat(entry.path().c_str(), &status) == 0) found.insert(status.st_ino);
  }
  return found;
}

bool share_files(const std::string& one, const std::string& other) {
  const auto others = inodes_of(other);
  for (const ino_t node : inodes_of(one))
    if (others.count(node) > 0) return true;
  return false;
}

StateDict reusable_state(std::int64_t step, const World& world) {
  StateDict state = state_of_step(step, world);
  state["base"] = frozen(Value(counting({600, 50}, 3)));
  return state;
}

TEST_CASE_FIXTURE(RunOnDisk, "reuse: retention keeps a second copy of data that checkpoints share") {
  CheckpointManagerOptions options = keeping_last(2);
  options.writer.reuse = Reuse::kDeclared;
  options.writer.reuse_generations_max = 3;
  managed(run, options, [&](CheckpointManager& manager) {
    const auto save = [&](std::int64_t step) {
      manager.save(step, reusable_state(step, manager.world()));
      manager.wait_for_saves();
    };
    const auto check = [&](std::int64_t step, const Names& names) {
      save(step);
      check_kept(manager, names);
    };
    // Steps 1 to 3 share a file, 4 to 6, 7 to 9.
    check(1, {"step_1"});
    check(2, {"step_2", "step_1"});
    check(3, {"step_3", "step_2"});  // there is one copy
    check(4, {"step_4", "step_3"});  // there are two
    check(5, {"step_5", "step_4", "step_3"});
    check(6, {"step_6", "step_5", "step_3"});
    check(7, {"step_7", "step_6"});
    if (manager.world().rank() != 0) return;
    CHECK_FALSE(share_files(place("step_7"), place("step_6")));
    for (const auto& name : names_in(manager)) CHECK(verify_checkpoint(*open_store(place(name))).empty());
  });
  options.retention.keep_last = 1;
  managed(run, options, [&](CheckpointManager& manager) {
    for (const std::int64_t step : {8, 9}) {
      manager.save(step, reusable_state(step, manager.world()));
      manager.wait_for_saves();
    }
    check_kept(manager, {"step_9"});  // one checkpoint was asked for
  });
}

TEST_CASE_FIXTURE(RunOnDisk, "reuse: a fault counts for each checkpoint that shares the file, and a sound one stays") {
  CheckpointManagerOptions options = keeping_last(2);
  options.writer.reuse = Reuse::kDeclared;
  options.writer.reuse_generations_max = 3;
  managed(run, options, [&](CheckpointManager& manager) {
    for (std::int64_t step = 1; step <= 7; ++step) {
      // Steps 4 and 5 share this file.
      if (step == 6 && manager.world().rank() == 0)
        for (const auto& entry : std::filesystem::directory_iterator(place("step_5")))
          if (entry.file_size() > 100'000) std::filesystem::resize_file(entry.path(), 10);
      manager.save(step, reusable_state(step, manager.world()));
      manager.wait_for_saves();
      if (step == 6) check_kept(manager, {"step_6", "step_5", "step_3"});
    }
    check_kept(manager, {"step_7", "step_6"});
  });
}

TEST_CASE_FIXTURE(RunOnDisk, "reuse: the second copy that stays is sound") {
  CheckpointManagerOptions options = keeping_last(2);
  options.writer.reuse = Reuse::kDeclared;
  options.writer.reuse_generations_max = 2;
  const auto save_steps_of = [&](std::initializer_list<std::int64_t> steps, const Names& names) {
    managed(
        run, options,
        [&](CheckpointManager& manager) {
          for (const std::int64_t step : steps) {
            manager.save(step, reusable_state(step, manager.world()));
            manager.wait_for_saves();
          }
          check_kept(manager, names);
        },
        1);
  };
  save_steps_of({1, 2, 3}, {"step_3", "step_2"});
  for (const auto& entry : std::filesystem::directory_iterator(place("step_3")))
    if (is_cairns_file(entry.path().filename().string())) std::filesystem::resize_file(entry.path(), 10);
  save_steps_of({4, 5}, {"step_5", "step_4", "step_2"});
}

TEST_CASE("reuse: asynchronous saves take over what has not changed, in all ways of staging") {
  for (const bool streams : {false, true}) {
    CAPTURE(streams);
    const TemporaryDirectory directory;
    on_all_ranks(2, [&](World& world) {
      Checkpointer checkpointer(world);
      SaveOptions options;
      options.writer.reuse = Reuse::kDigest;
      AsyncSaveOptions async;
      async.staging.stream = streams;
      const auto id = [&](int step) { return directory.path() + "/step_" + std::to_string(step); };
      for (int step = 1; step <= 4; ++step) {
        StateDict state = reusable_state(step, world);
        const auto saving = checkpointer.async_save(state, id(step), options, async);
        state["base"].tensor().fill_(-1);  // the staged state is saved
        saving.result();
      }
      for (int step = 1; step <= 4; ++step) {
        StateDict state = reusable_state(0, world);
        state["base"].tensor().zero_();
        checkpointer.load(state, id(step));
        CHECK(step_in(state, world) == step);
        CHECK(torch::equal(state["base"].tensor(), counting({600, 50}, 3)));
      }
      CHECK(share_files(id(1), id(4)));
    });
  }
}

TEST_CASE("reuse: after a load that finds damage, the next save writes everything") {
  const TemporaryDirectory directory;
  const auto id = [&](int step) { return directory.path() + "/step_" + std::to_string(step); };
  Checkpointer checkpointer(World::single());
  SaveOptions options;
  options.writer.reuse = Reuse::kDeclared;
  StateDict state{{"base", frozen(Value(counting({600, 50}, 3)))}};
  for (const int step : {1, 2}) checkpointer.save(state, id(step), options);
  REQUIRE(share_files(id(1), id(2)));
  for (const auto& entry : std::filesystem::directory_iterator(id(2))) {
    if (!is_cairns_file(entry.path().filename().string())) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(8000);
    file.write("damage", 6);
  }
  StateDict loaded{{"base", torch::zeros({600, 50})}};
  CHECK_THROWS_AS(checkpointer.load(loaded, id(2)), CheckpointException);
  checkpointer.save(state, id(3), options);
  CHECK_FALSE(share_files(id(2), id(3)));
  CHECK(verify_checkpoint(*open_store(id(3))).empty());
}

TEST_CASE("reuse: ranks that differ in the option are told so") {
  const TemporaryDirectory directory;
  on_all_ranks(2, [&](World& world) {
    SaveOptions options;
    options.writer.reuse = world.rank() == 0 ? Reuse::kDigest : Reuse::kDeclared;
    const Thrown thrown = thrown_by([&] { Checkpointer(world).save({}, directory.path() + "/step", options); });
    CHECK(thrown.says("reuse"));
  });
}

}  // namespace
}  // namespace cairn::testing
