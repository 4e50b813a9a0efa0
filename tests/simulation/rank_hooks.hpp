// What a hook does on a simulated rank: the shipping planners, writer and reader, on a small state whose every value tells
// which save it belongs to.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <cairn/actors/call_progress.hpp>
#include <cairn/actors/protocol/events.hpp>
#include <cairn/runtime/async_hooks.hpp>
#include <cairn/state/planner.hpp>
#include <cairn/storage/storage.hpp>

namespace cairn::simulation {

// What one save holds: `content` moves every value, another `layout` means other tensors, and so other plans.
struct Version {
  std::uint64_t content = 0;
  int layout = 0;
};

// The part of `rank`: a tensor cut over the ranks, a replicated one, a number and a text whose length changes from save to save.
StateDict state_of(const Version& version, int rank, int world_size);
// The same with nothing in it, to be loaded into. It asks for all that a checkpoint of `layout` holds.
StateDict empty_state(int layout, int rank, int world_size);
// Whether a loaded state is exactly that part.
bool holds(const StateDict& state, const Version& version, int rank, int world_size);

// The objects that one rank's checkpointer keeps from call to call.
struct Tools {
  Tools();
  std::shared_ptr<SavePlanner> save_planner;
  std::shared_ptr<LoadPlanner> load_planner;
  std::shared_ptr<StorageWriter> writer;
  std::shared_ptr<StorageReader> reader;
};

// What stands between the hooks of a save in the background and the planner and writer, as it ships. `staged` gives the state, when
// the save's turn has come.
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
  std::optional<BackgroundHooks> background;  // of a save in the background
  std::optional<Metadata> metadata;           // of a load
  int rank = 0;
  int world_size = 1;
};

// As the planner and storage actors run it, but on the spot. Throws what the hook throws.
protocol::HookValue run_hook(protocol::RunHook& hook, RunningCall& call);

}  // namespace cairn::simulation
