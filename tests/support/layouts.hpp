// The layouts that resharding tests cross with each other: how one tensor may lie on the ranks of a world.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include <cairn/state/state_dict.hpp>
#include <cairn/tests/support/sample_state.hpp>

namespace cairn::testing {

inline const std::vector<std::string>& layout_names() {
  static const std::vector<std::string> names{"replicated", "dim-0", "dim-1", "2-D mesh", "uneven", "left-out ranks"};
  return names;
}

// Cuts dimension 0 by hand: rank r gets a share that grows with r, so that low ranks may get nothing.
inline ShardedTensor uneven(const torch::Tensor& whole, int rank, int world_size) {
  const auto rows = whole.size(0);
  const auto total = static_cast<std::int64_t>(world_size) * (world_size + 1) / 2;
  const auto cut = [&](int r) { return rows * (static_cast<std::int64_t>(r) * (r + 1) / 2) / total; };
  const auto begin = cut(rank);
  const auto end = cut(rank + 1);
  std::vector<LocalShard> shards;
  if (end > begin) {
    Extents offsets = Extents::filled(static_cast<std::size_t>(whole.dim()), 0);
    offsets[0] = begin;
    shards.push_back({whole.narrow(0, begin, end - begin).clone(), offsets});
  }
  const Extents size(whole.sizes().data(), whole.sizes().size());
  const auto dtype = ShardedTensor::distribute(whole, over_all_ranks(1), 0).dtype();
  return ShardedTensor(size, dtype, std::move(shards));
}

// This rank's part of `whole`, as a copy.
inline Value lay_out(const std::string& layout, const torch::Tensor& whole, int rank, int world_size) {
  if (layout == "replicated") return whole.clone();
  if (layout == "dim-0" || layout == "dim-1")
    return ShardedTensor::distribute(whole, over_all_ranks(world_size, layout == "dim-1" && whole.dim() > 1 ? 1 : 0), rank);
  if (layout == "2-D mesh") {
    const std::int64_t first = world_size % 2 == 0 ? 2 : 1;
    const DeviceMesh mesh({first, world_size / first});
    const std::int64_t second_dim = whole.dim() > 1 ? 1 : 0;
    return ShardedTensor::distribute(whole, mesh, {Shard{0}, Shard{second_dim}}, rank);
  }
  if (layout == "uneven") return uneven(whole, rank, world_size);
  ChunkShardingSpec spec = over_all_ranks(world_size);
  if (world_size > 1) spec.placements.erase(spec.placements.begin());
  return ShardedTensor::distribute(whole, spec, rank);
}

// Several tensors of different shapes and types, whole.
inline std::vector<std::pair<std::string, torch::Tensor>> whole_tensors() {
  return {{"matrix", counting({7, 5}, 1)},
          {"half", counting({16, 12}, 2, torch::kBFloat16)},
          {"vector", counting({13}, 3, torch::kInt64)},
          {"cube", counting({4, 6, 5}, 4, torch::kFloat64)}};
}

inline StateDict state_in_layout(const std::string& layout, int rank, int world_size, bool zeroed = false) {
  StateDict state;
  for (const auto& [name, whole] : whole_tensors())
    state.insert(name, lay_out(layout, zeroed ? torch::zeros_like(whole) : whole, rank, world_size));
  return state;
}

// Whether this rank's parts hold what `state_in_layout` puts there.
inline bool holds_expected(const StateDict& state, const std::string& layout, int rank, int world_size) {
  const StateDict expected = state_in_layout(layout, rank, world_size);
  for (const auto& [name, value] : expected) {
    const Value& found = state.at(name);
    if (value.is_tensor()) {
      if (!torch::equal(found.tensor(), value.tensor())) return false;
      continue;
    }
    const auto& shards = value.sharded().local_shards();
    const auto& loaded = found.sharded().local_shards();
    if (shards.size() != loaded.size()) return false;
    for (std::size_t i = 0; i < shards.size(); ++i)
      if (!torch::equal(shards[i].tensor, loaded[i].tensor)) return false;
  }
  return true;
}

}  // namespace cairn::testing
