// Describes how a registered parameter is laid out over the ranks: cut by parallelize, by
// fully_shard, by both, or not at all. Compares digests of an operation's arguments over the ranks.
#pragma once

#include <string>
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

// Throws kMismatch, naming ranks of the world, unless all ranks of the group pass the same digest.
// A collective. The texts: where it happens, how ranks differ from the first one, and what must be
// the same.
void require_same(const Digest& own, const ProcessGroup& group, const std::string& where, const std::string& differ,
                  const std::string& what);

}  // namespace cairn::training
