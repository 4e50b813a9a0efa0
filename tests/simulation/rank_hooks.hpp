// Runs the hooks of a simulated rank with the shipping planners, writer and reader. The state is
// small, and every value in it tells which save it belongs to.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <cairn/actors/call_progress.hpp>
#include <cairn/actors/protocol/events.hpp>
#include <cairn/runtime/checkpoints/async_hooks.hpp>
#include <cairn/state/planner.hpp>
#include <cairn/storage/storage.hpp>

namespace cairn::simulation {

// The content of one save. `content` changes every value; another `layout` has other tensors, and
// so other plans.
struct Version {
  std::uint64_t content = 0;
  int layout = 0;
};

// Returns the part of `rank`: a sharded tensor, a replicated tensor, a number, and a text whose
// length changes from save to save.
StateDict state_of(const Version& version, int rank, int world_size);
// Returns the same state with empty values, to load into. It requests every entry of a checkpoint
// with this `layout`.
StateDict empty_state(int layout, int rank, int world_size);
// Returns whether the loaded `state` is exactly that part.
bool holds(const StateDict& state, const Version& version, int rank, int world_size);

// The objects that one rank's checkpointer keeps between calls.
struct Tools {
  Tools();
  std::shared_ptr<SavePlanner> save_planner;
  std::shared_ptr<LoadPlanner> load_planner;
  std::shared_ptr<StorageWriter> writer;
  std::shared_ptr<StorageReader> reader;
};

// The shipping layer between the hooks of a background save and the planner and writer. `staged`
// returns the state when the save's turn has come.
struct BackgroundHooks {
  BackgroundHooks(const Tools& tools, std::function<const StateDict&()> staged)
      : writer(*tools.writer, nullptr), planner(*tools.save_planner, progress, writer, std::move(staged), nullptr) {}
  CallProgress progress;
  AsyncWriter writer;
  AsyncPlanner planner;
};

// One call of one rank.
struct RunningCall {
  std::string checkpoint_id;
  StateDict state;
  std::shared_ptr<Tools> tools;
  std::optional<BackgroundHooks> background;  // for a background save
  std::optional<Metadata> metadata;           // for a load
  int rank = 0;
  int world_size = 1;
};

// Runs a hook as the planner and storage actors do, but synchronously. Throws the hook's exception.
protocol::HookValue run_hook(protocol::RunHook& hook, RunningCall& call);

}  // namespace cairn::simulation
