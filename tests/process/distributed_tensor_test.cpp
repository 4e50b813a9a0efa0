// Tensors on meshes that rank processes save, and load with other placements.
#include <cairn/runtime/cairn.hpp>
#include <cairn/runtime/testing/testing.hpp>
#include <cairn/state/tensor_types.hpp>
#include <cairn/tests/support/torch.hpp>
#include <cairn/training/distributed_tensor.hpp>
#include <cairn/training/group_from_environment.hpp>

using namespace cairn;
using namespace cairn::testing;
using training::DistributedTensor;
using training::ProcessMesh;
using training::TensorPlacement;

TEST_CASE("distributed tensors are saved in every layout and loaded into every other") {
  at::set_num_threads(1);
  const training::ProcessGroup ranks = training::process_group_from_environment();
  const std::int64_t half = ranks.size() / 2;
  const ProcessMesh line(ranks), grid(ranks, {2, half}, {"dp", "tp"});
  const torch::Tensor whole = torch::arange(7 * 5, torch::kFloat).view({7, 5});
  struct Layout {
    const ProcessMesh& mesh;
    std::vector<TensorPlacement> placements;
  };
  const std::vector<Layout> layouts = {{line, {Replicate{}}},        {line, {Shard{0}}},           {line, {Shard{1}}},
                                       {grid, {Shard{0}, Shard{1}}}, {grid, {Shard{0}, Shard{0}}}, {grid, {Replicate{}, Shard{1}}}};
  Checkpointer checkpointer(world());
  for (std::size_t from = 0; from < layouts.size(); ++from) {
    const std::string id = shared_directory() + "/layout_" + std::to_string(from);
    checkpointer.save({{"tensor", DistributedTensor::distribute(whole, layouts[from].mesh, layouts[from].placements)}}, id);
    for (const Layout& to : layouts) {
      const auto tensor = DistributedTensor::distribute(torch::zeros({7, 5}), to.mesh, to.placements);
      StateDict state{{"tensor", tensor}};
      checkpointer.load(state, id);
      CHECK(tensor.local().equal(part_of(whole, tensor.box().offsets, tensor.box().sizes)));
      CHECK(tensor.full_tensor().equal(whole));
    }
  }
}
