// Tensors that rank processes save and load: on meshes, over existing checkpoints, and through NCCL
// alone.
#include <filesystem>
#include <utility>
#include <vector>

#include <cairn/runtime/cairn.hpp>
#include <cairn/runtime/testing/testing.hpp>
#include <cairn/state/tensor_types.hpp>
#include <cairn/tests/support/sample_state.hpp>
#include <cairn/tests/support/thrown.hpp>
#include <cairn/tests/support/torch.hpp>

using namespace cairn;
using namespace cairn::testing;

namespace {

// Returns a random vector that is the same on every rank.
torch::Tensor random_vector(std::uint64_t seed) {
  torch::manual_seed(seed);
  return here(torch::rand({10}));
}

void check_overwriting(const std::string& id, bool first_refuses_to_overwrite) {
  Checkpointer checkpointer(world());
  SaveOptions refuse;
  refuse.writer.overwrite = false;
  const auto load_vector = [&] {
    StateDict state{{"random", here(torch::zeros({10}))}};
    CHECK(is_here(state));
    checkpointer.load(state, id);
    return state.at("random").tensor();
  };
  checkpointer.save({{"random", random_vector(1)}}, id, first_refuses_to_overwrite ? refuse : SaveOptions{});
  CHECK(torch::equal(load_vector(), random_vector(1)));
  checkpointer.save({{"random", random_vector(2)}}, id);
  CHECK(torch::equal(load_vector(), random_vector(2)));
  const std::string message = thrown_by([&] { checkpointer.save({{"random", random_vector(3)}}, id, refuse); }).what;
  CHECK_MESSAGE(message.find("Checkpoint already exists") != std::string::npos, message);
  CHECK(torch::equal(load_vector(), random_vector(2)));
}

}  // namespace

TEST_CASE("ranks outside a mesh save and load with those inside it") {
  const int rank = world().rank();
  const Extents size{6, 4};
  const torch::Tensor whole = counting({6, 4});
  const DeviceMesh odd({2}, {3, 1});
  const auto own = local_box(size, odd, {Shard{0}}, rank);
  CHECK(own.has_value() == (rank % 2 == 1));
  const torch::Tensor local = own ? part_of(whole, own->offsets, own->sizes).clone() : torch::zeros({0});
  const auto tensor = ShardedTensor::from_local(here(local), size, odd, {Shard{0}}, rank);
  CHECK(tensor.local_shards().size() == (own ? 1 : 0));
  const std::string id = shared_directory() + "/on_a_mesh";
  Checkpointer checkpointer(world());
  checkpointer.save({{"tensor", tensor}, {"step", 3}}, id);
  CHECK(torch::equal(checkpointer.load_by_keys(id, {"tensor"}).at("tensor").tensor(), whole));

  const std::pair<DeviceMesh, std::vector<Placement>> others[] = {{odd, {Shard{0}}},
                                                                  {DeviceMesh({2}, {0, 1}), {Shard{1}}},
                                                                  {DeviceMesh({1}, {2}), {Replicate{}}},
                                                                  {DeviceMesh({2, 2}), {Shard{1}, Shard{0}}}};
  for (const auto& [mesh, placements] : others) {
    const auto& shown = placements;
    CAPTURE(to_string(shown.front()));
    StateDict state{{"tensor", ShardedTensor::distribute(here(torch::zeros({6, 4})), mesh, placements, rank)}, {"step", 0}};
    CHECK(is_here(state));
    checkpointer.load(state, id);
    CHECK(state.at("step").to_int() == 3);
    const auto box = local_box(size, mesh, placements, rank);
    const auto& shards = state.at("tensor").sharded().local_shards();
    REQUIRE(shards.size() == (box ? 1 : 0));
    if (box) CHECK(torch::equal(shards[0].tensor.cpu(), part_of(whole, box->offsets, box->sizes)));
  }
}

TEST_CASE("ranks whose replicas differ are named to all ranks, also by a save that repeats a plan") {
  Checkpointer checkpointer(world());
  SaveOptions options;
  options.check_replicas = CheckReplicas::kError;
  const auto save_with = [&](int odd_rank) {
    const torch::Tensor weight = here(torch::full({64, 4}, world().rank() == odd_rank ? 2.0 : 1.0));
    return thrown_by([&] { checkpointer.save({{"w", weight}}, shared_directory() + "/replicas", options); });
  };
  for (int save = 0; save < 2; ++save) CHECK_FALSE(save_with(-1).is_error);
  CHECK(save_with(3).says("'w' differs between ranks: ranks 0-2 have one value, rank 3 another"));
  CHECK_FALSE(save_with(-1).is_error);
}

TEST_CASE("B2.8 saving again replaces the content, and overwrite=false refuses to") {
  check_overwriting(shared_directory() + "/overwritten", false);
}

TEST_CASE("B3.3 the same through a URL-selected store, in an empty directory") {
  const std::string directory = shared_directory() + "/empty";  // the report of the failed save is left beside it
  std::filesystem::create_directory(directory);
  check_overwriting("file://" + directory, true);
}

TEST_CASE("B2.9 async_save is refused on every rank where only NCCL is configured") {
  WorldOptions options;
  options.backends = "nccl";
  const World only_nccl = World::from_environment(options);
  CHECK(only_nccl.has_backend_for("cuda"));
  CHECK_FALSE(only_nccl.has_backend_for("cpu"));
  Checkpointer checkpointer(only_nccl);
  const auto refused = thrown_by([&] { checkpointer.async_save({}, shared_directory() + "/refused"); });
  CHECK(refused.code == ErrorCode::kPrecondition);
  CHECK(refused.what.find("A CPU backend must be enabled for async save; ") == 0);
}
