// The state that the tests of failing storage share, and small helpers for state dicts.
#pragma once

#include <numeric>
#include <vector>

#include <torch/torch.h>

#include <cairn/state/state_dict.hpp>
#include <cairn/tests/support/rank_device.hpp>

namespace cairn::testing {

inline ChunkShardingSpec over_all_ranks(int world_size, std::int64_t dim = 0) {
  ChunkShardingSpec spec;
  spec.dim = dim;
  spec.placements.resize(static_cast<std::size_t>(world_size));
  std::iota(spec.placements.begin(), spec.placements.end(), 0);
  return spec;
}

// Returns start, start + 1, start + 2, … in the shape `sizes`, so that every element identifies its
// position.
inline torch::Tensor counting(std::vector<std::int64_t> sizes, double start = 0, torch::ScalarType type = torch::kFloat32) {
  std::int64_t count = 1;
  for (const auto size : sizes) count *= size;
  return (torch::arange(count, torch::kFloat64) + start).reshape(sizes).to(type);
}

// Returns `sharded`, 20x20 on dim 0 over all ranks; `replicated`, 10x10 on every rank; and `bytes`,
// the list [1, 2, 3, 4]. The tensors are on the rank's device.
inline StateDict common_state(int rank, int world_size) {
  return {{"sharded", ShardedTensor::distribute(here(counting({20, 20})), over_all_ranks(world_size), rank)},
          {"replicated", here(counting({10, 10}, 1000))},
          {"bytes", c10::IValue(c10::List<std::int64_t>({1, 2, 3, 4}))}};
}

inline bool same_values(const StateDict& a, const StateDict& b) {
  if (!torch::equal(a.at("replicated").tensor(), b.at("replicated").tensor())) return false;
  const auto& left = a.at("sharded").sharded().local_shards();
  const auto& right = b.at("sharded").sharded().local_shards();
  if (left.size() != right.size()) return false;
  for (std::size_t i = 0; i < left.size(); ++i)
    if (!torch::equal(left[i].tensor, right[i].tensor)) return false;
  return a.at("bytes").ivalue() == b.at("bytes").ivalue();
}

}  // namespace cairn::testing
