// State dicts whose tensors have the layouts of layouts.hpp.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include <cairn/state/state_dict.hpp>
#include <cairn/state/tensor_types.hpp>
#include <cairn/tests/support/layouts.hpp>
#include <cairn/tests/support/sample_state.hpp>

namespace cairn::testing {

// Returns a copy of this rank's part of `whole`.
inline Value lay_out(const std::string& layout, const torch::Tensor& whole, int rank, int world_size) {
  if (layout == "replicated") return whole.clone();
  const Extents size = extents_of(whole.sizes());
  const BoxLayout parts = layout_of(layout, size, world_size);
  std::vector<LocalShard> shards;
  for (const Box& box : parts.boxes[static_cast<std::size_t>(rank)])
    shards.push_back({part_of(whole, box.offsets, box.sizes).clone(), box.offsets});
  return ShardedTensor(size, *dtype_of(whole.scalar_type()), std::move(shards));
}

// Returns several whole tensors of different shapes and types.
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

// Returns whether this rank's parts hold the values of `state_in_layout`.
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
