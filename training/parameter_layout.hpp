// Describes how a registered parameter is laid out over the ranks: cut by parallelize, by
// fully_shard, by both, or not at all.
#pragma once

#include <memory>
#include <vector>

#include <torch/types.h>

#include <cairn/training/process_group.hpp>
#include <cairn/training/process_mesh.hpp>

namespace cairn::training {

class ShardedUnit;

// Returns the unit that a shard or a full parameter belongs to; null for other tensors.
std::shared_ptr<ShardedUnit> unit_behind(const torch::Tensor& tensor);
// Returns, on every rank, a copy of a whole tensor that is laid out as `parameter`. `local` is this
// rank's part of that tensor. A collective if the parameter is cut.
torch::Tensor whole_like(const torch::Tensor& parameter, const torch::Tensor& local);
// Returns the groups of more than one rank over which the parameter is cut. Each group cuts what
// the group before it leaves.
std::vector<ProcessGroup> groups_cutting(const torch::Tensor& parameter);
// Returns all ranks that together hold the parameter's model; a group of one rank for plain
// tensors.
ProcessGroup world_behind(const torch::Tensor& parameter);

// Calls declare_shard for `shard`, the part of `cut` that `placements` on `mesh` give this rank. If
// `cut` is itself a part of a tensor, `shard` is declared as a part of that tensor.
void declare_what_is_left(const torch::Tensor& shard, const torch::Tensor& cut, const ProcessMesh& mesh,
                          const std::vector<Placement>& placements);

}  // namespace cairn::training
