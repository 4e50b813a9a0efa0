// How a parameter that a module registers lies on the ranks: cut by parallelize, by fully_shard, by one after the other, or not at all.
#pragma once

#include <memory>
#include <vector>

#include <torch/types.h>

#include <cairn/training/process_group.hpp>
#include <cairn/training/process_mesh.hpp>

namespace cairn::training {

class ShardedUnit;

// The unit that a tensor belongs to, as the shard or as the full parameter; null for others.
std::shared_ptr<ShardedUnit> unit_behind(const torch::Tensor& tensor);
// A copy of all of what is laid out as `parameter`, of which this rank has `local`; on every rank. A collective where it is cut.
torch::Tensor whole_like(const torch::Tensor& parameter, const torch::Tensor& local);
// The groups of more than one rank over which it is cut; each cuts what the one after it leaves.
std::vector<ProcessGroup> groups_cutting(const torch::Tensor& parameter);
// All ranks that hold the parameter's model together; one rank alone for plain tensors.
ProcessGroup world_behind(const torch::Tensor& parameter);

// Declares `shard`, which is what `placements` on `mesh` leave of `cut`, to `state`: as part of what `cut` is itself a part of.
void declare_what_is_left(const torch::Tensor& shard, const torch::Tensor& cut, const ProcessMesh& mesh,
                          const std::vector<Placement>& placements);

}  // namespace cairn::training
