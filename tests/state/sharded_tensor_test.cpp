#include <cairn/base/error.hpp>
#include <cairn/state/adapters.hpp>
#include <cairn/tests/messages/allocation_meter.hpp>
#include <cairn/tests/state/memory_checkpoint.hpp>

using namespace cairn;
using namespace cairn::test;

namespace {

// Returns offset and size along `dim` of each local shard of `rank`.
std::vector<std::pair<std::int64_t, std::int64_t>> cuts(const ChunkShardingSpec& spec, const Extents& size, int rank,
                                                        std::size_t dim) {
  std::vector<std::pair<std::int64_t, std::int64_t>> result;
  const ShardedTensor sharded = ShardedTensor::zeros(spec, size, rank);
  for (const LocalShard& shard : sharded.local_shards()) {
    result.emplace_back(shard.offsets[dim], shard.tensor.size(static_cast<std::int64_t>(dim)));
  }
  return result;
}

using Cuts = std::vector<std::pair<std::int64_t, std::int64_t>>;

}  // namespace

TEST_CASE("parts that cannot be parts are refused") {
  std::string text;
  const auto make = [&](std::vector<LocalShard> shards, DType dtype = DType::kFloat32) {
    return code_of([&] { ShardedTensor({4, 4}, dtype, std::move(shards)); }, &text);
  };
  CHECK(make({{torch::zeros({2, 4}), {3, 0}}}) == ErrorCode::kInvalidArgument);
  CHECK(has(text, "[3, 0]"));
  CHECK(make({{torch::zeros({2, 4}), {0}}}) == ErrorCode::kInvalidArgument);
  CHECK(make({{torch::zeros({2, 4}), {0, 0}}}, DType::kFloat64) == ErrorCode::kInvalidArgument);
  CHECK(make({{torch::zeros({2, 4}), {0, 0}}, {torch::zeros({2, 4}), {1, 0}}}) == ErrorCode::kInvalidArgument);
  CHECK(has(text, "overlap"));
  CHECK(make({{torch::zeros({2, 4}).to_sparse(), {0, 0}}}) == ErrorCode::kUnsupported);
  CHECK(make({{torch::Tensor(), {0, 0}}}) == ErrorCode::kUnsupported);
  CHECK(make({}) == ErrorCode{});
  CHECK(make({{torch::zeros({2, 4}), {0, 0}}, {torch::zeros({2, 4}), {2, 0}}, {torch::zeros({0, 4}), {4, 0}}}) == ErrorCode{});
}

TEST_CASE("specs that do not fit are refused") {
  const auto refused = [](const ChunkShardingSpec& spec) {
    return code_of([&] { ShardedTensor::zeros(spec, {4, 4}, 0); }) == ErrorCode::kInvalidArgument;
  };
  CHECK(refused({2, {0}}));
  CHECK(refused({-3, {0}}));
  CHECK(refused({0, {}}));
  CHECK(refused({0, {-1}}));
  CHECK(code_of([] { ShardedTensor::zeros({0, {0}}, {4}, 0, at::kQInt8); }) == ErrorCode::kUnsupported);
}

TEST_CASE("a spec cuts as PyTorch's ChunkShardingSpec") {
  CHECK(cuts({0, {0, 1, 2, 3}}, {5, 2}, 0, 0) == Cuts{{0, 2}});
  CHECK(cuts({0, {0, 1, 2, 3}}, {5, 2}, 2, 0) == Cuts{{4, 1}});
  CHECK(cuts({0, {0, 1, 2, 3}}, {5, 2}, 3, 0) == Cuts{{5, 0}});
  CHECK(cuts({1, {3, 0, 2}}, {2, 9}, 3, 1) == Cuts{{0, 3}});
  CHECK(cuts({1, {3, 0, 2}}, {2, 9}, 0, 1) == Cuts{{3, 3}});
  CHECK(cuts({1, {3, 0, 2}}, {2, 9}, 1, 1).empty());
  CHECK(cuts({0, {0, 1, 0, 1}}, {6}, 0, 0) == Cuts{{0, 2}, {4, 2}});
  CHECK(cuts({-1, {0, 1}}, {4, 4}, 1, 1) == Cuts{{2, 2}});
  const auto sharded = ShardedTensor::zeros({0, {0, 1, 2, 3}}, {5, 2}, 0);
  CHECK((*sharded.all_chunks() == std::vector<Box>{{{0, 0}, {2, 2}}, {{2, 0}, {2, 2}}, {{4, 0}, {1, 2}}}));
  CHECK((*ShardedTensor::zeros({0, {0, 1}}, {0, 3}, 0).all_chunks() == std::vector<Box>{Box::whole({0, 3})}));
}

TEST_CASE("default metadata tells how names nest, and refuses what cannot be saved") {
  const Metadata metadata = create_default_metadata({{"model", Dict{{"net.weight", torch::zeros({2, 3})}}}, {"rng", per_rank(1)}});
  REQUIRE(metadata.planner_data.size() == 2);
  CHECK((metadata.planner_data[0] == std::pair<std::string, Path>{"model.net.weight", {"model", "net.weight"}}));
  CHECK((metadata.planner_data[1] == std::pair<std::string, Path>{"rng.rank_0", {"rng", "rank_0"}}));
  CHECK(code_of([] { create_default_metadata({{"s", torch::zeros({2}).to_sparse()}}); }) == ErrorCode::kUnsupported);
}

TEST_CASE("a local part must have the size that the mesh gives it") {
  const DeviceMesh mesh({2});
  const torch::Tensor local = torch::zeros({2, 4});
  CHECK(code_of([&] { ShardedTensor::from_local(local, {5, 4}, mesh, {Shard{0}}, 0); }) == ErrorCode::kInvalidArgument);
  CHECK(code_of([&] { ShardedTensor::from_local(local, {4, 4}, mesh, {Shard{0}}, 2); }) == ErrorCode::kInvalidArgument);
  const auto made = ShardedTensor::from_local(local, {4, 4}, mesh, {Shard{0}}, 1);
  CHECK(made.local_shards()[0].tensor.data_ptr() == local.data_ptr());
  CHECK(made.local_shards()[0].offsets == Extents{2, 0});
  CHECK(ShardedTensor::from_local(torch::zeros({0}), {4, 4}, mesh, {Shard{0}}, 2).local_shards().empty());
}

TEST_CASE("the same part with other memory must have the part's size and type") {
  const DeviceMesh mesh({2});
  const torch::Tensor local = torch::zeros({2, 4}), other = torch::ones({2, 4});
  const auto made = ShardedTensor::from_local(local, {4, 4}, mesh, {Shard{0}}, 1);
  const auto replaced = made.with_local_tensors({other});
  REQUIRE(replaced.local_shards().size() == 1);
  CHECK(replaced.local_shards()[0].tensor.is_same(other));
  CHECK(replaced.local_shards()[0].offsets == Extents{2, 0});
  CHECK(replaced.size() == Extents{4, 4});
  CHECK(*replaced.mesh() == mesh);
  CHECK((replaced.placements() == made.placements()));
  CHECK(made.local_shards()[0].tensor.is_same(local));
  CHECK(code_of([&] { made.with_local_tensors({}); }) == ErrorCode::kInvalidArgument);
  CHECK(code_of([&] { made.with_local_tensors({other, other}); }) == ErrorCode::kInvalidArgument);
  CHECK(code_of([&] { made.with_local_tensors({torch::ones({4, 2})}); }) == ErrorCode::kInvalidArgument);
  CHECK(code_of([&] { made.with_local_tensors({other.to(torch::kDouble)}); }) == ErrorCode::kInvalidArgument);
}

TEST_CASE("a part of a tensor costs the same whatever the number of ranks") {
  const torch::Tensor local = torch::zeros({2, 4});
  // Declares a shard and makes its sharded tensor, as a state dict does for each parameter. Returns
  // the bytes allocated.
  const auto bytes_of_state = [&](const Extents& size, const DeviceMesh& mesh, const std::vector<Placement>& placements, int rank) {
    const torch::Tensor parameter = torch::zeros({2, 4});
    const testing::AllocationMeter meter;
    declare_shard(parameter, size, mesh, placements, rank);
    const Value value = as_declared(parameter, parameter);
    const auto made = ShardedTensor::from_local(local, size, mesh, placements, rank);
    return meter.bytes();
  };
  const std::vector<Placement> rows{Shard{0}}, hybrid{Replicate{}, Shard{0}}, grid{Shard{0}, Shard{1}};
  std::vector<int> reversed(4096);
  for (int i = 0; i < 4096; ++i) reversed[static_cast<std::size_t>(i)] = 4095 - i;
  declare_shard(local, {16, 4}, DeviceMesh({8}), rows, 0);  // makes the table of declarations allocate its first entries
  const DeviceMesh few({8}), many({4096}), backwards({4096}, reversed), few_2d({2, 4}), many_2d({64, 64});
  const double of_few = static_cast<double>(bytes_of_state({16, 4}, few, rows, 7));
  CHECK(static_cast<double>(bytes_of_state({8192, 4}, many, rows, 4095)) <= 1.2 * of_few);
  CHECK(static_cast<double>(bytes_of_state({8192, 4}, backwards, rows, 0)) <= 1.2 * of_few);
  const double of_few_2d = static_cast<double>(bytes_of_state({8, 4}, few_2d, hybrid, 7));
  CHECK(static_cast<double>(bytes_of_state({128, 4}, many_2d, hybrid, 4095)) <= 1.2 * of_few_2d);
  CHECK(static_cast<double>(bytes_of_state({128, 256}, many_2d, grid, 4095)) <=
        1.2 * static_cast<double>(bytes_of_state({4, 16}, few_2d, grid, 7)));

  const auto of_many = ShardedTensor::from_local(local, {8192, 4}, many, rows, 4095);
  const Metadata metadata = create_default_metadata({{"sharded", of_many}});
  const auto& described = std::get<TensorStorageMetadata>(*metadata.find("sharded"));
  CHECK(described.chunks.size() == 4096);
  CHECK((described.chunks.back() == Box{{8190, 0}, {2, 4}}));
}
