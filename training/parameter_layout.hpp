// Describes how a registered parameter is laid out over the ranks: cut by parallelize, by
// fully_shard, by both, or not at all. Compares digests of an operation's arguments over the ranks.
#pragma once

#include <vector>

#include <torch/types.h>

#include <cairn/base/digest.hpp>
#include <cairn/training/process_group.hpp>

namespace cairn::training {

// Returns, on every rank, a whole copy of a tensor that is cut like `parameter`. `local` is this
// rank's part of that tensor. A collective if the parameter is cut.
torch::Tensor whole_like(const torch::Tensor& parameter, const torch::Tensor& local);
// Returns the groups of more than one rank over which the parameter is cut. Each group cuts what
// the group before it leaves.
std::vector<ProcessGroup> groups_cutting(const torch::Tensor& parameter);
// Returns all ranks that together hold the parameter's model; a group of one rank for plain
// tensors.
ProcessGroup world_behind(const torch::Tensor& parameter);

// Returns the world ranks whose digest differs from that of the group's first rank. A collective.
std::vector<int> ranks_that_differ(const Digest& own, const ProcessGroup& group);

}  // namespace cairn::training
