// Saves that repeat the plan of the last one.
#include <cairn/tests/support/torch.hpp>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <cairn/runtime/cairn.hpp>
#include <cairn/state/checkpoint_writer.hpp>
#include <cairn/state/hugging_face.hpp>
#include <cairn/tests/support/in_process_world.hpp>
#include <cairn/tests/support/temporary_directory.hpp>

namespace cairn::testing {
namespace {

TEST_CASE("values on which ranks disagree fail a later save of the same plan, and not the one after it") {
  const TemporaryDirectory directory;
  on_all_ranks(2, [&](World& world) {
    Checkpointer checkpointer(world);
    for (int step = 0; step < 6; ++step) {
      CAPTURE(step);
      const bool differ = step == 3;
      const std::string id = directory.path() + "/step_" + std::to_string(step);
      StateDict state{{"w", torch::full({64, 4}, step)}, {"epoch", differ ? world.rank() : step}, {"lr", 0.5}};
      SaveOptions options;
      options.step = step;  // differs from save to save, as in a trainer
      if (step == 5) options.planning.global.dedup = Dedup::kLowestRank;
      try {
        checkpointer.save(state, id, options);
        CHECK_FALSE(differ);
      } catch (const CheckpointException& failed) {
        CHECK(differ);
        CHECK(std::string(failed.what()).find("epoch") != std::string::npos);
      }
      if (differ) continue;
      StateDict loaded{{"w", torch::zeros({64, 4}, torch::kInt64)}, {"epoch", -1}, {"lr", 0.0}};
      checkpointer.load(loaded, id);
      CHECK(loaded["w"].tensor().eq(step).all().item<bool>());
      CHECK(loaded["epoch"].to_int() == step);
      // With kLowestRank, rank 0 has written all.
      if (world.rank() == 0) CHECK(read_metadata(id).files.size() == (step == 5 ? 1 : 2));
    }
  });
}

// A planner of a user's, which leaves a tensor out of the global plan.
class LeavesOut final : public DefaultSavePlanner {
 public:
  GlobalSavePlan create_global_plan(std::vector<SavePlan> all_plans) override {
    ++calls;
    for (SavePlan& plan : all_plans) {
      const auto name = plan.names.find("frozen");
      for (std::size_t i = 0; i < plan.items.size(); ++i)
        if (plan.items[i].name == name) plan.items.erase(plan.items.begin() + static_cast<std::ptrdiff_t>(i--));
    }
    return DefaultSavePlanner::create_global_plan(std::move(all_plans));
  }
  int calls = 0;
};

// A planner of a user's, which changes the metadata alone.
class Renames final : public DefaultSavePlanner {
 public:
  GlobalSavePlan create_global_plan(std::vector<SavePlan> all_plans) override {
    GlobalSavePlan plan = DefaultSavePlanner::create_global_plan(std::move(all_plans));
    for (auto& [name, path] : plan.metadata.planner_data) path.insert(path.begin(), "renamed");
    return plan;
  }
};

// A writer of a user's.
class CountsEntries final : public CheckpointWriter {
 public:
  void finish(Metadata metadata, std::vector<WriteResults> results) override {
    entries.push_back(metadata.state_dict_metadata.size());
    CheckpointWriter::finish(std::move(metadata), std::move(results));
  }
  std::vector<std::size_t> entries;
};

TEST_CASE("the plan of a user's planner or writer is repeated by nobody, and the hooks of both are called in every save") {
  const TemporaryDirectory directory;
  on_all_ranks(2, [&](World& world) {
    Checkpointer checkpointer(world);
    const StateDict state{{"w", torch::ones({8, 4})}, {"frozen", torch::ones(4)}};
    int saves = 0;
    const auto entries_of_save = [&](const SaveOptions& options) {
      const std::string id = directory.path() + "/step_" + std::to_string(saves++);
      checkpointer.save(state, id, options);
      return read_metadata(id).state_dict_metadata.size();
    };
    SaveOptions with_planner, with_writer;
    const auto planner = std::make_shared<LeavesOut>();
    const auto writer = std::make_shared<CountsEntries>();
    with_planner.planner = planner;
    with_writer.storage_writer = writer;
    for (int repeat = 0; repeat < 2; ++repeat) {
      CHECK(entries_of_save(with_planner) == 1);
      CHECK(entries_of_save(with_planner) == 1);
      CHECK(entries_of_save({}) == 2);
      CHECK(entries_of_save({}) == 2);
      CHECK(entries_of_save(with_writer) == 2);
      CHECK(entries_of_save(with_writer) == 2);
    }
    CHECK(planner->calls == (world.rank() == 0 ? 4 : 0));
    CHECK(writer->entries == std::vector<std::size_t>(world.rank() == 0 ? 4 : 0, 2));
  });
}

TEST_CASE("saves of one state by changing planners, writers and slots have the metadata that each alone would write") {
  const TemporaryDirectory directory, disk("/var/tmp");
  on_all_ranks(2, [&](World& world) {
    Checkpointer checkpointer(world);
    int saves = 0;
    const auto check = [&](const SaveOptions& options, bool is_async, bool is_elsewhere, const char* first_step) {
      CAPTURE(saves);
      const std::string id = (is_elsewhere ? disk : directory).path() + "/step_" + std::to_string(saves);
      const StateDict state{{"w", torch::full({1000}, saves)}, {"v", torch::ones({500})}, {"b", torch::ones({3})}};
      ++saves;
      if (is_async) {
        AsyncSaveOptions background;
        background.while_in_flight = WhileInFlight::kRefuse;
        checkpointer.async_save(state, id, options, background).wait();
      } else {
        checkpointer.save(state, id, options);
      }
      const Metadata metadata = read_metadata(id);
      CHECK(metadata.state_dict_metadata.size() == 3);
      for (const auto& [name, path] : metadata.planner_data) CHECK(path.front() == PathElement(first_step ? first_step : name));
      StateDict loaded{{"w", torch::zeros({1000}, torch::kInt64)}};
      if (!options.storage_writer) {
        checkpointer.load(loaded, id);
        CHECK(loaded["w"].tensor().eq(saves - 1).all().item<bool>());
      }
    };
    SaveOptions renaming, safetensors;
    renaming.planner = std::make_shared<Renames>();
    safetensors.storage_writer = std::make_shared<HuggingFaceStorageWriter>();
    for (const bool elsewhere : {false, true}) {
      check({}, false, false, nullptr);
      check(renaming, false, elsewhere, "renamed");
      check({}, true, elsewhere, nullptr);
      check({}, false, false, nullptr);
      check({}, true, false, nullptr);
      check(renaming, true, false, "renamed");
      check({}, false, elsewhere, nullptr);
    }
    for (int step = 0; step < 3; ++step) {
      SaveOptions options = step == 1 ? safetensors : SaveOptions();
      checkpointer.save({{"w", torch::full({1000}, step)}, {"v", torch::ones({500})}, {"b", torch::ones({3})}},
                        directory.path() + "/mixed_" + std::to_string(step), options);
    }
  });
}

}  // namespace
}  // namespace cairn::testing
