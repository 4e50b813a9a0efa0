// Saves and loads of whole worlds in two tiers, and runs that a manager keeps there.
#include <cairn/tests/support/torch.hpp>

#include <filesystem>
#include <set>
#include <string>

#include <cairn/runtime/cairn.hpp>
#include <cairn/runtime/runs/checkpoint_manager.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/runs/retention.hpp>
#include <cairn/storage/store.hpp>
#include <cairn/storage/stores/tier_copier.hpp>
#include <cairn/storage/tiers.hpp>
#include <cairn/tests/support/captured_log.hpp>
#include <cairn/tests/support/failure_maps.hpp>
#include <cairn/tests/support/in_process_world.hpp>
#include <cairn/tests/support/temporary_directory.hpp>
#include <cairn/tests/support/thrown.hpp>

using namespace cairn;
using namespace cairn::testing;

namespace {

struct TwoDirectories {
  TwoDirectories() { start(); }
  ~TwoDirectories() { forget_tier("world"); }
  void start() const {
    TierOptions options;
    options.near_url = directory.path() + "/near";
    options.far_url = directory.path() + "/far";
    register_tier("world", options);
  }
  void lose_near() const { std::filesystem::remove_all(directory.path() + "/near"); }

  TemporaryDirectory directory;
  const std::string far = directory.path() + "/far";
};

StateDict vector_of(int seed) { return {{"vector", torch::arange(10) * seed}}; }

bool holds(Checkpointer& checkpointer, const std::string& place, int seed) {
  StateDict state{{"vector", torch::zeros({10}, torch::kInt64)}};
  checkpointer.load(state, place);
  return torch::equal(state.at("vector").tensor(), torch::arange(10) * seed);
}

}  // namespace

TEST_CASE_FIXTURE(TwoDirectories, "B2.8 B3.3 saving again to tiers replaces the content, and overwrite=false refuses to") {
  const std::string place = "tiered://world/run/step_1";
  on_all_ranks(4, [&](World& world) {
    Checkpointer checkpointer(world);
    SaveOptions refuse;
    refuse.writer.overwrite = false;
    checkpointer.save(vector_of(1), place, refuse);
    CHECK_MESSAGE(holds(checkpointer, place, 1), "the first save is not there");
    checkpointer.save(vector_of(2), place);
    CHECK_MESSAGE(holds(checkpointer, place, 2), "the second save did not replace the first");
    const Thrown refused = thrown_by([&] { checkpointer.save(vector_of(3), place, refuse); });
    CHECK_MESSAGE(refused.says("Checkpoint already exists"), "the third save was not refused");
    CHECK_MESSAGE(holds(checkpointer, place, 2), "the refused save changed the content");
  });
  REQUIRE(wait_for_copies(place));
  lose_near();
  on_all_ranks(2, [&](World& world) {
    Checkpointer checkpointer(world);
    CHECK_MESSAGE(holds(checkpointer, place, 2), "the far tier does not have the second save");
    SaveOptions refuse;
    refuse.writer.overwrite = false;
    const FailureMap refused = failures_of([&] { checkpointer.save(vector_of(4), place, refuse); });
    CHECK_MESSAGE(!refused.empty(), "a checkpoint that the far tier alone has was replaced");
  });
}

TEST_CASE_FIXTURE(TwoDirectories, "retention keeps the last copied checkpoint, whichever process has copied it") {
  const std::string run = "tiered://world/run";
  cairn::save(vector_of(1), run + "/step_1");
  cairn::save(vector_of(2), run + "/step_2");
  REQUIRE(wait_for_copies(run));
  forget_tier("world");
  for (const int step : {3, 4}) cairn::save(vector_of(step), directory.path() + "/near/run/step_" + std::to_string(step));
  start();  // a process that copies nothing, such as `cairn prune`
  RetentionPolicy policy;
  policy.keep_last = 1;
  CHECK(look_at_retention(RunDirectory(run), policy).kept == std::set<std::string>{"step_2", "step_4"});
  for (const int step : {3, 4}) CHECK_FALSE(open_store(far + "/run/step_" + std::to_string(step))->exists(kCommitRecordName));
}

TEST_CASE_FIXTURE(TwoDirectories, "a manager's run is copied when it ends, and goes on without the near tier") {
  const std::string run = "tiered://world/run";
  CheckpointManagerOptions options;
  options.retention.keep_last = 3;
  on_all_ranks(2, [&](World& world) {
    CheckpointManager manager(world, run, options);
    for (int step = 1; step <= 5; ++step) {
      if (step > 1) wait_for_copies(run);  // the last copied checkpoint is not removed
      manager.save(step, vector_of(step));
    }
  });
  for (const std::string name : {"step_3", "step_4", "step_5"})
    CHECK(open_store(directory.path() + "/near/run/" + name)->list(kDataFilePrefix).empty() == (name == "step_3"));
  CHECK(open_store(far + "/run")->children() == std::vector<std::string>{"step_3", "step_4", "step_5"});
  forget_tier("world");
  lose_near();
  start();
  CheckpointManager manager(World::single(), run, options);
  StateDict state{{"vector", torch::zeros({10}, torch::kInt64)}};
  const auto restored = manager.restore_latest(state);
  REQUIRE(restored);
  CHECK(restored->checkpoint.name == "step_5");
  CHECK(torch::equal(state.at("vector").tensor(), torch::arange(10) * 5));
}

TEST_CASE_FIXTURE(TwoDirectories, "a manager names the checkpoints that were lost with the near tier") {
  const std::string run = "tiered://world/run";
  CheckpointManager(World::single(), run).save(1, vector_of(1));
  forget_tier("world");
  start();
  // The far tier has heard of a second save, and has a file of it.
  const auto place = open_store(far + "/run/step_2");
  place->create_root();
  const std::string lost_id = "cairn-00112233445566778899aabbccddeeff-01234567-2";
  place->begin_attempt(lost_id);
  const auto copied = open_store(far + "/run/step_1");
  const ObjectInfo file = copied->list(kDataFilePrefix).at(0);
  Bytes content(static_cast<std::size_t>(file.size_bytes), '\0');
  copied->read(file.name, {{0, {content.data(), content.size()}}});
  const auto writer = place->create(data_file_name(0, 0, lost_id));
  writer->write_at(0, content);
  writer->sync(content.size());
  const CapturedLog log;
  CheckpointManager manager(World::single(), run);
  CHECK(log.text().find("step_2 was saved to the near tier and lost before its copy") != std::string::npos);
  CHECK(log.text().find(lost_id) != std::string::npos);
  StateDict state{{"vector", torch::zeros({10}, torch::kInt64)}};
  const auto restored = manager.restore_latest(state);
  REQUIRE(restored);
  CHECK(restored->checkpoint.name == "step_1");
  CHECK_FALSE(place->open_attempts().empty());  // this manager may only read, and another process copy
  manager.save(3, vector_of(3));
  REQUIRE(wait_for_copies(run));
  CHECK(place->open_attempts().empty());
  CHECK(place->list().empty());
}
