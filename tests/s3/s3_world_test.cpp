// Saves and loads of whole worlds through a bucket.
#include <cairn/tests/support/torch.hpp>

#include <filesystem>
#include <optional>
#include <vector>

#include <cairn/runtime/cairn.hpp>
#include <cairn/runtime/runs/checkpoint_manager.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/read_metadata.hpp>
#include <cairn/storage/runs/run_directory.hpp>
#include <cairn/storage/store.hpp>
#include <cairn/storage/stores/s3_store.hpp>
#include <cairn/storage/tiers.hpp>
#include <cairn/storage/verify_checkpoint.hpp>
#include <cairn/tests/s3/s3_place.hpp>
#include <cairn/tests/storage/store_tools.hpp>
#include <cairn/tests/support/in_process_world.hpp>
#include <cairn/tests/support/laid_out_state.hpp>
#include <cairn/tests/support/temporary_directory.hpp>
#include <cairn/tests/support/thrown.hpp>

using namespace cairn;
using namespace cairn::testing;

TEST_CASE("four ranks save to a bucket, and three load it into another layout") {
  const std::string run = new_s3_place();
  const auto& layouts = layout_names();
  on_all_ranks(4, [&](World& world) {
    Checkpointer checkpointer(world);
    for (const auto& layout : layouts)
      checkpointer.save(state_in_layout(layout, world.rank(), world.size()), child_url(run, layout));
  });
  on_all_ranks(3, [&](World& world) {
    Checkpointer checkpointer(world);
    for (std::size_t i = 0; i < layouts.size(); ++i) {
      const std::string& to = layouts[(i + 1) % layouts.size()];
      StateDict state = state_in_layout(to, world.rank(), world.size(), true);
      checkpointer.load(state, child_url(run, layouts[i]));
      // doctest's checks are for the thread of the test.
      if (!holds_expected(state, to, world.rank(), world.size())) throw std::runtime_error(layouts[i] + " did not load as " + to);
    }
  });
}

namespace {

std::vector<std::string> recorded_places(const std::string& run) {
  std::vector<std::string> found;
  for (const std::string& name : open_store(run)->children())
    if (open_store(run + "/" + name)->exists(kCommitRecordName)) found.push_back(name);
  return found;
}

}  // namespace

TEST_CASE("a file of several parts is saved through staging memory of two parts, and is sound") {
  const std::string place = new_s3_place();
  SaveOptions options;
  options.writer.bytes_in_flight_max = 16u << 20;
  // Five parts of 8 MiB and a tail; a bytes object of more than a part lies in the tail.
  const torch::Tensor large = torch::arange(10'500'000, torch::kInt32);
  const std::string bytes(9'000'000, 'b');
  save({{"large", large}, {"bytes", bytes}}, place, options);
  const auto store = open_store(place);
  CHECK(verify_checkpoint(*store).empty());
  StateDict loaded{{"large", torch::zeros_like(large)}, {"bytes", std::string()}};
  load(loaded, place);
  CHECK(torch::equal(loaded.at("large").tensor(), large));
  CHECK((loaded.at("bytes").ivalue().toStringRef() == bytes));

  options.writer.bytes_in_flight_max = 4u << 20;
  CHECK_THROWS_WITH_AS(save({{"large", large}}, place, options), doctest::Contains("bytes_in_flight_max"), CheckpointException);
}

TEST_CASE("data that did not change are taken over from the checkpoint before, which may be removed") {
  const std::string run = new_s3_place();
  SaveOptions options;
  options.writer.reuse = Reuse::kDeclared;
  const torch::Tensor steady = torch::arange(5'000'000, torch::kInt32);
  Checkpointer checkpointer(World::single());
  std::vector<Metadata> saved;
  for (int step = 1; step <= 2; ++step) {
    checkpointer.save({{"steady", frozen(steady)}, {"step", torch::tensor(step)}}, child_url(run, std::to_string(step)), options);
    saved.push_back(read_metadata(*open_store(child_url(run, std::to_string(step)))));
  }
  CHECK(saved[1].commit->shares_with == std::vector<std::string>{saved[0].save_id});
  const auto first = open_store(child_url(run, "1")), second = open_store(child_url(run, "2"));
  for (const ObjectInfo& object : first->list()) first->remove(object.name);
  CHECK(verify_checkpoint(*second).empty());
  StateDict loaded{{"steady", torch::zeros_like(steady)}, {"step", torch::tensor(0)}};
  checkpointer.load(loaded, second->url());
  CHECK(torch::equal(loaded.at("steady").tensor(), steady));
  CHECK(loaded.at("step").tensor().item<int>() == 2);
}

TEST_CASE("checkpoints are copied from a directory to a bucket, and come back without it") {
  const std::string run = parent_url(new_s3_place());
  TemporaryDirectory directory;
  TierOptions tier;
  tier.near_url = directory.path() + "/near";
  tier.far_url = run;
  tier.piece_bytes = 8u << 20;
  register_tier("bucket", tier);
  const torch::Tensor large = torch::arange(5'000'000, torch::kInt32);  // 20 MB: three parts
  CheckpointManagerOptions options;
  options.retention.keep_last = 3;
  {
    CheckpointManager manager(World::single(), "tiered://bucket/run", options);
    for (int step = 1; step <= 4; ++step) {
      manager.save(step, {{"large", large + step}});
      REQUIRE(wait_for_copies("tiered://bucket/run"));  // the last copied checkpoint is not removed
    }
  }
  for (int step = 2; step <= 4; ++step) {
    const auto near = open_store(directory.path() + "/near/run/step_" + std::to_string(step));
    CHECK(near->list(kDataFilePrefix).empty() == (step == 2));
  }
  const std::vector<std::string> kept = recorded_places(run + "/run");
  CHECK(kept == std::vector<std::string>{"step_2", "step_3", "step_4"});
  for (const std::string& name : kept) CHECK(verify_checkpoint(*open_store(run + "/run/" + name)).empty());
  std::filesystem::remove_all(directory.path() + "/near");
  CheckpointManager manager(World::single(), "tiered://bucket/run", options);
  StateDict state{{"large", torch::zeros_like(large)}};
  const auto restored = manager.restore_latest(state);
  REQUIRE(restored);
  CHECK(restored->checkpoint.name == "step_4");
  CHECK(torch::equal(state.at("large").tensor(), large + 4));
}

namespace {

struct SmallRun {
  explicit SmallRun(std::string at, CheckpointManagerOptions with = {}) : run(std::move(at)), options(std::move(with)) {}
  void save(int step) { CheckpointManager(World::single(), run, options).save(step, {{"step", torch::full({10}, step)}}); }
  std::string restored() {
    StateDict state{{"step", torch::zeros({10}, torch::kInt64)}};
    const auto found = CheckpointManager(World::single(), run, options).restore_latest(state);
    if (found) CHECK(found->checkpoint.name == "step_" + std::to_string(state.at("step").tensor()[0].item<int>()));
    return found ? found->checkpoint.name : "";
  }
  std::string run;
  CheckpointManagerOptions options;
};

}  // namespace

// Removes all objects of a place as another program does.
void delete_objects(const std::string& place) {
  for (const ObjectInfo& object : open_store(place)->list())
    s3_client()->send({"DELETE", "remove", "s3:DeleteObject", place.substr(place.find("tests/")) + "/" + object.name});
}

TEST_CASE("a latest checkpoint that is gone from the far tier is missed once the near one is lost") {
  const std::string far = parent_url(new_s3_place());
  TemporaryDirectory near;
  TierOptions tier;
  tier.near_url = near.path() + "/near";
  tier.far_url = far;
  register_tier("missing", tier);
  SmallRun run("tiered://missing/run");
  run.save(1);
  run.save(2);
  REQUIRE(wait_for_copies(run.run));
  std::filesystem::remove_all(tier.near_url);
  CHECK(run.restored() == "step_2");
  delete_objects(far + "/run/step_2");
  const Thrown missed = thrown_by([&] { run.restored(); });
  CAPTURE(missed.what);
  CHECK(missed.says("the latest checkpoint was step_2"));
}

TEST_CASE("a latest checkpoint that was removed without Cairn is missed until the next save") {
  SmallRun run(parent_url(new_s3_place()));
  run.save(1);
  run.save(2);
  delete_objects(run.run + "/step_2");
  const Thrown missed = thrown_by([&] { run.restored(); });
  CAPTURE(missed.what);
  CHECK(missed.says("[corrupt]"));
  CHECK(missed.says("the latest checkpoint was step_2"));
  CHECK(missed.says("data_without_record"));
  run.options.data_without_record = DataWithoutRecord::kUseNewestWhole;
  CHECK(run.restored() == "step_1");
  run.options.data_without_record = DataWithoutRecord::kRefuse;
  run.save(3);
  CHECK(run.restored() == "step_3");
  CHECK(RunDirectory(run.run).list().checkpoints.front().head.sequence == 3);
}

TEST_CASE("the latest place of a run is that of the largest sequence which Cairn has not removed") {
  SmallRun run(parent_url(new_s3_place()));
  const auto latest = [&] {
    const auto store = open_store(run.run);
    const auto found = store->look().latest;
    return found ? found->name + " " + std::to_string(found->sequence) : "";
  };
  CHECK(latest() == "");
  for (int step = 1; step <= 2; ++step) run.save(step);
  CHECK(latest() == "step_2 2");
  // A job that was slower publishes an older record, and no record of Cairn's.
  for (const std::string& record : {get_object(*open_store(run.run + "/step_1"), kCommitRecordName), std::string("record")}) {
    const auto slow = open_store(run.run + "/step_9");
    slow->begin_attempt("slow");
    slow->publish("slow", record, Overwrite::kAllowed);
    CHECK(latest() == "step_2 2");
  }
  open_store(run.run + "/step_9")->retract();
  const RunDirectory directory(run.run);
  CHECK_FALSE(directory.remove(directory.list().checkpoints.front()));
  CHECK(latest() == "");
  CHECK(run.restored() == "step_1");
  run.save(2);
  CHECK(latest() == "step_2 2");
  CHECK(run.restored() == "step_2");
}

TEST_CASE("a list without the latest checkpoint is an error while its record is there") {
  // Keeps the first list of a run, as it was before the second save.
  class StaleClient : public S3Client {
   public:
    StaleClient() : S3Client(kS3Bucket, [] { return s3_settings_from_environment(kS3Bucket); }) {}
    S3Response send(const S3Request& request) override {
      if (!request.key.empty()) return S3Client::send(request);
      if (!first_) first_ = S3Client::send(request);
      return *first_;
    }

   private:
    std::optional<S3Response> first_;
  };
  SmallRun run(parent_url(new_s3_place()));
  S3Store stale(kS3Bucket, run.run.substr(run.run.find("tests/")), std::make_shared<StaleClient>());
  run.save(1);
  CHECK(stale.children() == std::vector<ObjectName>{"step_1"});
  run.save(2);
  const Thrown contradicted = thrown_by([&] { stale.children(); });
  CAPTURE(contradicted.what);
  CHECK(contradicted.code == ErrorCode::kUnavailable);
  CHECK(contradicted.says("step_2"));
  CHECK(run.restored() == "step_2");
}

TEST_CASE("a run in a bucket resumes from its latest checkpoint and keeps as many as it should") {
  CheckpointManagerOptions options;
  options.retention.keep_last = 2;
  SmallRun run(new_s3_place(), options);
  for (int step = 1; step <= 4; ++step) run.save(step);
  CHECK(run.restored() == "step_4");
  CHECK(recorded_places(run.run) == std::vector<std::string>{"step_3", "step_4"});
}
