// A run whose checkpoints are kept by managers, one on each rank. Include a test framework header
// first.
#pragma once

#include <functional>
#include <initializer_list>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <cairn/runtime/runs/checkpoint_manager.hpp>
#include <cairn/tests/storage/store_tools.hpp>
#include <cairn/tests/support/in_process_world.hpp>
#include <cairn/tests/support/sample_state.hpp>
#include <cairn/tests/support/temporary_directory.hpp>

namespace cairn::testing {

inline constexpr int kManagedRanks = 2;

inline StateDict state_of_step(std::int64_t step, const World& world) {
  return {{"weight",
           ShardedTensor::distribute(counting({8, 4}, static_cast<double>(step)), over_all_ranks(world.size()), world.rank())},
          {"step", step}};
}

// Returns the step that `restore_latest` loaded into `state`. Checks that the tensor belongs to
// that step.
inline std::int64_t step_in(const StateDict& state, const World& world) {
  const std::int64_t step = state.at("step").to_int();
  const StateDict expected = state_of_step(step, world);
  const auto& found = state.at("weight").sharded().local_shards();
  const auto& wanted = expected.at("weight").sharded().local_shards();
  CHECK(found.size() == wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) CHECK(torch::equal(found[i].tensor, wanted[i].tensor));
  return step;
}

inline Names names_in(const CheckpointManager& manager) {
  Names names;
  for (const auto& checkpoint : manager.checkpoints()) names.push_back(checkpoint.name);
  return names;
}

// Checks the kept checkpoints on rank 0, which removes the others. Other ranks may see the removal
// later.
inline void check_kept(CheckpointManager& manager, const Names& names) {
  if (manager.world().rank() != 0) return;
  manager.wait_for_saves();
  CHECK(names_in(manager) == names);
}

inline CheckpointManagerOptions keeping_last(std::uint32_t count) {
  CheckpointManagerOptions options;
  options.retention.keep_last = count;
  return options;
}

// Runs `body` on every rank, each with its own manager.
using WithManager = std::function<void(CheckpointManager&)>;
inline void managed(const std::string& run, const CheckpointManagerOptions& options, const WithManager& body,
                    int ranks = kManagedRanks) {
  on_all_ranks(ranks, [&](World& world) {
    CheckpointManager manager(world, run, options);
    body(manager);
  });
}

// Saves the steps one after another. Waits for the clean-up after each.
inline void save_steps(CheckpointManager& manager, std::initializer_list<std::int64_t> steps) {
  for (const auto step : steps) {
    manager.save(step, state_of_step(step, manager.world()));
    manager.wait_for_saves();
  }
}

// Returns the step that a new manager restores. Checks that it is the same on all ranks.
inline std::int64_t restored_step(const std::string& run) {
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

// Returns the error text of `call`. Checks that every rank throws the same failure map and that it
// contains `code`.
inline std::string failure_on_all(const std::string& run, const CheckpointManagerOptions& options, ErrorCode code,
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

// Checks which checkpoint was found, and which were passed over, each with a part of the reason.
inline void check_found(const std::optional<ValidCheckpoint>& found, const std::string& name,
                        const std::vector<std::pair<std::string, std::string>>& passed_over) {
  REQUIRE(found.has_value());
  CHECK(found->checkpoint.name == name);
  REQUIRE(found->passed_over.size() == passed_over.size());
  for (std::size_t i = 0; i < passed_over.size(); ++i) {
    const std::string& why = found->passed_over[i].why;
    CHECK(found->passed_over[i].name == passed_over[i].first);
    CHECK_FALSE(why.empty());
    CHECK_MESSAGE(why.find(passed_over[i].second) != std::string::npos, why);
  }
}

struct RunOnDisk {
  const TemporaryDirectory directory;
  const std::string run = directory.path() + "/run";
  std::string place(const std::string& name) const { return run + "/" + name; }
};

}  // namespace cairn::testing
