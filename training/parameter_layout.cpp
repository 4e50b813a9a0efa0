#include <cairn/training/parameter_layout.hpp>

#include <algorithm>

#include <torch/torch.h>

#include <cairn/state/adapters.hpp>
#include <cairn/state/tensor_types.hpp>
#include <cairn/training/distributed_tensor.hpp>
#include <cairn/training/gather_on_use.hpp>
#include <cairn/training/parallel_parameter.hpp>
#include <cairn/training/sharded_unit.hpp>
#include <cairn/training/torch_compat.hpp>

namespace cairn::training {
namespace {

// Returns the parameter that parallelize registered before fully_shard took it; null if parallelize
// did not cut it.
std::shared_ptr<const ParallelParameter> parallel_behind(const torch::Tensor& parameter) {
  const auto unit = unit_behind(parameter);
  // fully_shard registers shards in place of the parts, and keeps the parts as its full tensors.
  return parallel_parameter_of(unit ? unit->full(memory_owner(parameter)->index) : parameter);
}

// Declares a shard that `placements` on `mesh` cut from a part that `parallel` cut. Returns false
// unless both meshes are the two axes of one mesh.
bool declare_on_root(const torch::Tensor& shard, const ParallelParameter& parallel, const ProcessMesh& mesh,
                     const std::vector<Placement>& placements) {
  const ProcessMesh& root = parallel.mesh.root();
  if (root.axes() != 2 || mesh.axes() != 1 || !(mesh.root().mesh() == root.mesh()) ||
      mesh.axis_of_root() == parallel.mesh.axis_of_root())
    return false;
  const std::size_t axis = mesh.axis_of_root(), parallel_axis = parallel.mesh.axis_of_root();
  std::vector<Placement> both(2, Replicate{});
  both[axis] = placements.front();
  both[parallel_axis] = Shard{parallel.dim};
  DeviceMesh on = root.mesh();
  // Cuts of one dimension are applied from left to right, and the parallel cut comes first.
  if (both[0] == both[1] && axis < parallel_axis) {
    std::vector<int> ranks;
    for (std::int64_t column = 0; column < on.shape()[1]; ++column) {
      for (std::int64_t row = 0; row < on.shape()[0]; ++row)
        ranks.push_back(on.ranks()[static_cast<std::size_t>(row * on.shape()[1] + column)]);
    }
    std::vector<std::string> names(on.axis_names().rbegin(), on.axis_names().rend());
    on = DeviceMesh({on.shape()[1], on.shape()[0]}, std::move(ranks), std::move(names));
  }
  declare_shard(shard, parallel.size, on, both, mesh.world().world_rank());
  return true;
}

}  // namespace

std::shared_ptr<ShardedUnit> unit_behind(const torch::Tensor& tensor) {
  const MemoryOwner* const owner = memory_owner(tensor);
  return owner == nullptr ? nullptr : owner->unit.lock();
}

torch::Tensor whole_like(const torch::Tensor& parameter, const torch::Tensor& local) {
  const auto unit = unit_behind(parameter);
  const torch::Tensor part = without_sharded_mark(local);
  torch::Tensor whole = unit ? unit->whole(memory_owner(parameter)->index, part) : part.clone();
  if (const auto parallel = parallel_behind(parameter))
    whole = DistributedTensor::from_local(whole, parallel->size, parallel->mesh, {Shard{parallel->dim}}).full_tensor();
  return whole;
}

std::vector<ProcessGroup> groups_cutting(const torch::Tensor& parameter) {
  std::vector<ProcessGroup> groups;
  if (const auto parallel = parallel_behind(parameter)) groups.push_back(parallel->group());
  if (const auto unit = unit_behind(parameter)) groups.push_back(unit->shard_group());
  // A group of one rank cuts nothing.
  groups.erase(std::remove_if(groups.begin(), groups.end(), [](const auto& group) { return group.size() == 1; }), groups.end());
  return groups;
}

ProcessGroup world_behind(const torch::Tensor& parameter) {
  if (const auto parallel = parallel_behind(parameter)) return parallel->mesh.root().world();
  if (const auto unit = unit_behind(parameter)) return unit->mesh().root().world();
  return ProcessGroup::single();
}

void declare_what_is_left(const torch::Tensor& shard, const torch::Tensor& cut, const ProcessMesh& mesh,
                          const std::vector<Placement>& placements) {
  const Extents size = extents_of(cut.sizes());
  const int rank = mesh.world().world_rank();
  const auto parallel = parallel_parameter_of(cut);
  const bool cuts =
      std::any_of(placements.begin(), placements.end(), [](const auto& each) { return std::holds_alternative<Shard>(each); });
  if (!parallel) {
    if (cuts) declare_shard(shard, size, mesh.root().mesh(), mesh.on_root(placements), rank);
    return;
  }
  if (!cuts) return DistributedTensor::from_local(shard, parallel->size, parallel->mesh, {Shard{parallel->dim}}).declare();
  if (declare_on_root(shard, *parallel, mesh, placements)) return;
  Box box = *local_box(size, mesh.mesh(), placements, rank);
  const Box outer = *local_box(parallel->size, parallel->mesh.mesh(), {Shard{parallel->dim}}, rank);
  // The shard lies within the part: its place in the whole is the sum of both offsets.
  for (std::size_t dim = 0; dim < box.offsets.size(); ++dim) box.offsets[dim] += outer.offsets[dim];
  declare_shard(shard, box, parallel->size);
}

}  // namespace cairn::training
