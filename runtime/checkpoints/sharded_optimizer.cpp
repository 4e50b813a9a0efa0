#include <cairn/runtime/checkpoints/sharded_optimizer.hpp>

#include <torch/types.h>

#include <cairn/base/error.hpp>
#include <cairn/state/tensor_types.hpp>
#include <cairn/storage/read_metadata.hpp>
#include <cairn/storage/store.hpp>

namespace cairn {
namespace {

// Returns a tensor to load into. It has the parameter's layout if it has the parameter's size.
Value destination(const TensorStorageMetadata& stored, const Value* parameter, const std::string& name) {
  const auto type = scalar_type_of(stored.properties.dtype);
  if (!type)
    throw Error(ErrorCode::kUnsupported, "load optimizer state: this LibTorch has no type for \"" + name + "\", which is " +
                                             to_string(stored.properties.dtype));
  return with_torch("allocate \"" + name + "\"", [&]() -> Value {
    // Some state has not the parameter's shape, such as a count of steps: it is loaded whole.
    if (parameter == nullptr || !parameter->is_sharded() || parameter->sharded().size() != stored.size)
      return torch::empty(array_of(stored.size), torch::TensorOptions().dtype(*type));
    std::vector<LocalShard> shards;
    for (const LocalShard& shard : parameter->sharded().local_shards()) {
      const auto options = shard.tensor.options().dtype(*type).requires_grad(false);
      shards.push_back({torch::empty(shard.tensor.sizes(), options), shard.offsets});
    }
    return ShardedTensor(stored.size, stored.properties.dtype, std::move(shards));
  });
}

}  // namespace

Dict load_sharded_optimizer_state_dict(Checkpointer& checkpointer, const std::string& checkpoint_id, const std::string& key,
                                       const Dict& model_state_dict, const LoadOptions& options) {
  const Metadata metadata = read_metadata(*open_store(checkpoint_id));
  StateDict state;
  // A name alone does not tell the path, because keys may contain dots.
  for (const auto& [name, path] : metadata.planner_data) {
    if (path.empty() || path.front() != PathElement(key)) continue;
    const Metadata::Entry* const entry = metadata.find(name);
    if (entry == nullptr) continue;
    Value value;  // leaves other than tensors are replaced by the load
    if (const auto* tensor = std::get_if<TensorStorageMetadata>(entry)) {
      // {key: {"state": {parameter: {field: …}}}}
      const auto* const parameter = path.size() == 4 ? std::get_if<std::string>(&path[2]) : nullptr;
      value = destination(*tensor, parameter == nullptr ? nullptr : model_state_dict.find(*parameter), name);
    }
    set_at(state, path, std::move(value));
  }
  if (!state.contains(key))
    throw Error(ErrorCode::kNotFound, "load optimizer state: nothing is saved under \"" + key + "\" in " + checkpoint_id);
  checkpointer.load(state, checkpoint_id, options);
  return state.at(key).dict();
}

}  // namespace cairn
