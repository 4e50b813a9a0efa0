#include <cairn/runtime/cairn.hpp>

#include <memory>

#include <cairn/runtime/launch/launchers.hpp>

namespace cairn {
namespace {

// `call`: the free function, for the error.
template <class Options>
World world_of(const Options& options, const char* call) {
  if (options.world && !options.no_dist) return *options.world;
  if (!options.no_dist)
    // Ranks that each save alone would replace each other's checkpoint.
    refuse_world_of_one(call, "pass `world` in its options, such as World::from_environment(), or set `no_dist`");
  return World::single();
}

}  // namespace

void save(const StateDict& state_dict, const std::string& checkpoint_id, const SaveOptions& options) {
  Checkpointer(world_of(options, "cairn::save"), "default").save(state_dict, checkpoint_id, options);
}

AsyncSaveResponse async_save(const StateDict& state_dict, const std::string& checkpoint_id, const SaveOptions& options,
                             const AsyncSaveOptions& async_options) {
  const auto checkpointer = std::make_shared<Checkpointer>(world_of(options, "cairn::async_save"), "default");
  SaveOptions decided = options;
  decided.no_dist = false;  // `world_of` has applied it already
  AsyncSaveResponse response = checkpointer->async_save(state_dict, checkpoint_id, decided, async_options);
  // The caller has no checkpointer, so the handle keeps it alive.
  response.checkpointer_ = checkpointer;
  return response;
}

LoadReport load(StateDict& state_dict, const std::string& checkpoint_id, const LoadOptions& options) {
  return Checkpointer(world_of(options, "cairn::load"), "default").load(state_dict, checkpoint_id, options);
}

StateDict load_by_keys(const std::string& checkpoint_id, const std::vector<std::string>& prefixes, const LoadOptions& options) {
  return Checkpointer(world_of(options, "cairn::load_by_keys"), "default").load_by_keys(checkpoint_id, prefixes, options);
}

Metadata read_metadata(const std::string& checkpoint_id) {
  const auto store = open_store(checkpoint_id);
  return read_metadata(*store);
}

}  // namespace cairn
