// The default metadata of a state, and modules that own sharded tensors.
#include <cairn/runtime/cairn.hpp>
#include <cairn/runtime/testing/testing.hpp>
#include <cairn/tests/support/sample_state.hpp>
#include <cairn/tests/support/torch.hpp>

using namespace cairn;
using namespace cairn::testing;

TEST_CASE("B1.1 a sharding spec may leave ranks out") {
  const ChunkShardingSpec spec{0, {1}};
  const auto tensor = ShardedTensor::zeros(spec, {4, 4}, world().rank(), torch::dtype(torch::kFloat64).device(rank_device()));
  CHECK(is_here(tensor));
  CHECK(tensor.local_shards().size() == (world().rank() == 1 ? 1 : 0));
  const Metadata metadata = create_default_metadata({{"sharded", tensor}});
  const auto& stored = std::get<TensorStorageMetadata>(*metadata.find("sharded"));
  CHECK(stored.properties.dtype == DType::kFloat64);
  CHECK(stored.size == Extents{4, 4});
  REQUIRE(stored.chunks.size() == 1);
  CHECK(stored.chunks[0] == Box::whole({4, 4}));
}

TEST_CASE("B1.2 default metadata of bytes, a replicated and a sharded tensor") {
  const int size = world().size();
  const auto on_device = torch::TensorOptions(rank_device());
  const StateDict state{{"sharded", ShardedTensor::zeros(over_all_ranks(size), {10, 10}, world().rank(), on_device)},
                        {"replicated", torch::rand({4}, on_device)},
                        {"bytes", c10::IValue(c10::List<std::int64_t>({1, 2, 3, 4}))}};
  CHECK(is_here(state));
  const Metadata metadata = create_default_metadata(state);
  CHECK(std::holds_alternative<BytesStorageMetadata>(*metadata.find("bytes")));
  const auto& replicated = std::get<TensorStorageMetadata>(*metadata.find("replicated"));
  CHECK(replicated.size == Extents{4});
  CHECK(replicated.properties.dtype == DType::kFloat32);
  CHECK(replicated.chunks.size() == 1);
  const auto& sharded = std::get<TensorStorageMetadata>(*metadata.find("sharded"));
  CHECK(sharded.size == Extents{10, 10});
  CHECK(sharded.properties.dtype == DType::kFloat32);
  CHECK((sharded.chunks == std::vector<Box>{{{0, 0}, {5, 10}}, {{5, 0}, {5, 10}}}));
}

namespace {

// A module with one half of the rows of a 6x4 weight, and a whole bias.
struct HalfLinear : torch::nn::Module {
  explicit HalfLinear(int rank) {
    weight = register_parameter("weight", counting({3, 4}, 12.0 * rank));
    bias = register_parameter("bias", torch::zeros({6}));
    declare_shard(weight, Box{{3 * rank, 0}, {3, 4}}, {6, 4});
  }
  torch::Tensor weight, bias;
};

}  // namespace

TEST_CASE("B1.9 a module's state dict includes the sharded tensors that it owns") {
  const int rank = world().rank();
  const auto module = std::make_shared<HalfLinear>(rank);
  const Dict state = module_state_dict(*module);
  REQUIRE(state.at("weight").is_sharded());
  const ShardedTensor& weight = state.at("weight").sharded();
  CHECK(weight.size() == Extents{6, 4});
  REQUIRE(weight.local_shards().size() == 1);
  CHECK(weight.local_shards()[0].offsets == Extents{3 * rank, 0});
  CHECK(weight.local_shards()[0].tensor.data_ptr() == module->weight.data_ptr());
  CHECK(state.at("bias").is_tensor());

  // A save of the module therefore holds the whole weight exactly once.
  const std::string directory = shared_directory() + "/module";
  Checkpointer checkpointer(world());
  checkpointer.save({{"module", std::static_pointer_cast<torch::nn::Module>(module)}}, directory);
  const StateDict whole = checkpointer.load_by_keys(directory, {"module"});
  CHECK(torch::equal(whole.at("module")["weight"].tensor(), counting({6, 4})));
}
