// Implements DCP's create_default_metadata: the metadata of a save, without saving.
#include <cairn/base/error.hpp>
#include <cairn/state/planner.hpp>
#include <cairn/state/rank_names.hpp>
#include <cairn/state/tensor_types.hpp>

namespace cairn {
namespace {

TensorStorageMetadata describe_sharded(const ShardedTensor& sharded) {
  TensorStorageMetadata described;
  described.properties.dtype = sharded.dtype();
  described.size = sharded.size();
  if (auto chunks = sharded.all_chunks()) {
    described.chunks = std::move(*chunks);
  } else {
    for (const LocalShard& shard : sharded.local_shards()) {
      Box box{shard.offsets, extents_of(shard.tensor.sizes())};
      // Without a spec or mesh, this rank knows only its own parts.
      if (!box.empty()) described.chunks.push_back(std::move(box));
    }
  }
  if (!sharded.local_shards().empty()) described.properties.requires_grad = sharded.local_shards().front().tensor.requires_grad();
  return described;
}

TensorStorageMetadata metadata_of_tensor(const std::string& fqn, const torch::Tensor& tensor) {
  const std::string reason = why_not_storable(tensor);
  if (!reason.empty())
    throw Error(ErrorCode::kUnsupported, "describe \"" + fqn + "\": it " + reason + "; only dense tensors can be saved");
  TensorStorageMetadata described;
  described.properties.dtype = *dtype_of(tensor.scalar_type());
  described.properties.requires_grad = tensor.requires_grad();
  described.size = extents_of(tensor.sizes());
  described.chunks = {Box::whole(described.size)};
  return described;
}

}  // namespace

// One rank's view. A save would join the plans of all ranks instead.
Metadata create_default_metadata(const StateDict& state_dict) {
  Metadata metadata;
  for (FlatEntry& entry : flatten(state_dict)) {
    if (entry.value.is_per_rank()) {
      // As the save planner names the value of rank 0.
      entry.fqn = rank_name(entry.fqn, 0);
      entry.path.push_back(rank_key(0));
    }
    Metadata::Entry described = BytesStorageMetadata{};
    if (entry.value.is_sharded()) described = describe_sharded(entry.value.sharded());
    if (entry.value.is_tensor()) described = metadata_of_tensor(entry.fqn, entry.value.tensor());
    metadata.state_dict_metadata.emplace_back(entry.fqn, std::move(described));
    metadata.planner_data.emplace_back(std::move(entry.fqn), std::move(entry.path));
  }
  metadata.reindex();
  return metadata;
}

}  // namespace cairn
