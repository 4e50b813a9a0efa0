#include <cairn/tests/support/torch.hpp>
// torch first
#include <string>

#include <cairn/state/sharded_tensor.hpp>
#include <cairn/tests/simulation/checkpoint_values.hpp>
#include <cairn/tests/support/sample_state.hpp>

namespace cairn::simulation {
namespace {

// Fewer rows than the largest worlds have ranks, and prime: some ranks hold nothing, and shards are
// uneven.
constexpr std::int64_t kRows = 7;

torch::Tensor sharded_values(const Version& version) {
  return testing::counting({kRows, 3}, static_cast<double>(version.content) * 100);
}

torch::Tensor replicated_values(const Version& version) {
  return testing::counting({4, 2}, static_cast<double>(version.content) * 100 + 50, torch::kInt64);
}

std::string text_of(const Version& version) {
  return std::string(1 + version.content % 37, static_cast<char>('a' + version.content % 26));
}

std::string replicated_key(int layout) { return "replicated." + std::to_string(layout); }

}  // namespace

StateDict state_of(const Version& version, int rank, int world_size) {
  return {{"sharded", ShardedTensor::distribute(sharded_values(version), testing::over_all_ranks(world_size), rank)},
          {replicated_key(version.layout), replicated_values(version)},
          {"step", static_cast<std::int64_t>(version.content)},
          {"text", text_of(version)}};
}

std::uint64_t items_max(int world_size) { return 3 * static_cast<std::uint64_t>(world_size) + kRows; }

StateDict empty_state(int layout, int rank, int world_size) {
  return {{"sharded", ShardedTensor::zeros(testing::over_all_ranks(world_size), {kRows, 3}, rank)},
          {replicated_key(layout), torch::zeros({4, 2}, torch::kInt64)},
          {"step", 0},
          {"text", ""}};
}

bool holds(const StateDict& state, const Version& version, int rank, int world_size) {
  const auto expected = state_of(version, rank, world_size);
  const auto& parts = expected.at("sharded").sharded().local_shards();
  const auto& found = state.at("sharded").sharded().local_shards();
  if (parts.size() != found.size()) return false;
  for (std::size_t i = 0; i < parts.size(); ++i)
    if (!torch::equal(parts[i].tensor, found[i].tensor)) return false;
  const Value* replicated = state.find(replicated_key(version.layout));
  return replicated != nullptr && torch::equal(replicated->tensor(), replicated_values(version)) &&
         state.at("step").to_int() == static_cast<std::int64_t>(version.content) && state.at("text").to_text() == text_of(version);
}

}  // namespace cairn::simulation
