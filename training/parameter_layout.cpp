#include <cairn/training/parameter_layout.hpp>

#include <algorithm>

#include <torch/torch.h>

#include <cairn/base/error.hpp>
#include <cairn/base/rank_text.hpp>
#include <cairn/training/distributed_tensor.hpp>
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

}  // namespace

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

void require_same(const Digest& own, const ProcessGroup& group, const std::string& where, const std::string& differ,
                  const std::string& what) {
  torch::Tensor sent = torch::empty({static_cast<std::int64_t>(own.size())}, torch::kUInt8);
  std::copy(own.begin(), own.end(), sent.data_ptr<std::uint8_t>());
  const torch::Tensor all = torch::empty({group.size(), sent.numel()}, torch::kUInt8);
  // Every rank gets all digests, so that every rank finds the same differences and none goes on
  // alone.
  group.all_gather(all, sent);
  std::vector<int> differing;
  for (int rank = 1; rank < group.size(); ++rank) {
    if (!all[rank].equal(all[0])) differing.push_back(group.ranks()[static_cast<std::size_t>(rank)]);
  }
  if (!differing.empty())
    throw Error(ErrorCode::kMismatch, where + name_ranks(differing) + " " + differ + " than rank " +
                                          std::to_string(group.ranks().front()) + ": " + what + " must be the same on all ranks");
}

}  // namespace cairn::training
