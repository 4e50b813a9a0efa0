#include <cairn/tests/support/torch.hpp>

#include <cairn/state/adapters.hpp>
#include <cairn/state/tensor_types.hpp>
#include <cairn/tests/support/on_ranks.hpp>
#include <cairn/tests/support/thrown.hpp>
#include <cairn/training/distributed_tensor.hpp>

using namespace cairn;
using namespace cairn::testing;
using training::DistributedTensor;
using training::Partial;
using training::ProcessGroup;
using training::ProcessMesh;
using training::TensorPlacement;

namespace {

using Placements = std::vector<TensorPlacement>;

// Returns whole numbers, so that sums are exact in any order.
torch::Tensor numbers(const std::vector<std::int64_t>& sizes, std::int64_t first = 1) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  return here(torch::arange(first, first + count, torch::kDouble).view(sizes));
}

// Returns all placements of a two-dimensional tensor on `axes` mesh axes.
std::vector<Placements> all_placements(std::size_t axes) {
  std::vector<Placements> all{{}};
  for (std::size_t axis = 0; axis < axes; ++axis) {
    std::vector<Placements> longer;
    for (const auto& begun : all) {
      for (const TensorPlacement& next :
           {TensorPlacement(Shard{0}), TensorPlacement(Shard{1}), TensorPlacement(Replicate{}), TensorPlacement(Partial{})}) {
        longer.push_back(begun);
        longer.back().push_back(next);
      }
    }
    all = std::move(longer);
  }
  return all;
}

std::string text_of(const Placements& placements) {
  std::string text;
  for (const auto& placement : placements) text += training::to_string(placement) + " ";
  return text;
}

torch::Tensor part(const torch::Tensor& whole, const DistributedTensor& distributed) {
  return part_of(whole, distributed.box().offsets, distributed.box().sizes);
}

// Distributes `whole` so that along Partial axes each rank holds a different addend.
DistributedTensor with_addends(const torch::Tensor& whole, const ProcessMesh& mesh, const Placements& placements) {
  const DistributedTensor given = DistributedTensor::distribute(whole, mesh, placements);
  torch::Tensor local = part(whole, given).clone();
  for (std::size_t axis = 0; axis < placements.size(); ++axis) {
    if (!std::holds_alternative<Partial>(placements[axis])) continue;
    const ProcessGroup& group = mesh.axis(axis);
    const torch::Tensor others = local * 2 + 5;
    local = group.rank() == 0 ? local - others * (group.size() - 1) : others;
  }
  return DistributedTensor::from_local(local, given.size(), mesh, placements);
}

const std::vector<std::pair<int, std::vector<std::int64_t>>> kMeshes = {
    {1, {1}}, {2, {2}}, {3, {3}}, {4, {4}}, {2, {1, 2}}, {2, {2, 1}}, {3, {3, 1}}, {4, {2, 2}}, {4, {4, 1}}};

}  // namespace

TEST_CASE("distributed tensor: parts, placements and meshes that do not fit are refused") {
  on_ranks(2, [](const ProcessGroup& group) {
    const ProcessMesh mesh(group);
    const auto refused = [](const auto& call, const char* text) {
      const Thrown thrown = thrown_by(call);
      CHECK(thrown == Saying{ErrorCode::kInvalidArgument, text});
    };
    refused(
        [&] {
          DistributedTensor::distribute(numbers({4, 2}), mesh, {Shard{0}, Shard{1}});
        },
        "2 placements are given for a mesh");
    refused([&] { DistributedTensor::distribute(numbers({4, 2}), mesh, {Shard{2}}); }, "Shard(2) is out of range");
    refused([&] { DistributedTensor::distribute(torch::ones({}), mesh, {Shard{0}}); }, "out of range");
    refused([&] { DistributedTensor::distribute({}, mesh, {Replicate{}}); }, "undefined");
    refused([&] { DistributedTensor::from_local(torch::ones({2, 2}), {3, 3}, mesh, {Shard{0}}); }, "its part has the size [2, 2]");
    refused([&] { DistributedTensor::from_local({}, {3}, mesh, {Shard{0}}); }, "undefined");
    const auto rows = DistributedTensor::distribute(numbers({4, 2}), mesh, {Shard{0}});
    refused([&] { rows.redistribute({Shard{-3}}); }, "out of range");
    const auto addends = rows.redistribute({Partial{}});
    CHECK(thrown_by([&] { addends.sharded(); }).code == ErrorCode::kUnsupported);
    CHECK(thrown_by([&] { addends.declare(); }).says("redistribute it to Shard or Replicate first"));
    const auto flags = DistributedTensor::from_local(torch::ones({2}, torch::kBool), {2}, mesh, {Partial{}});
    CHECK(thrown_by([&] { flags.full_tensor(); }).code == ErrorCode::kUnsupported);
    CHECK(rows.full_tensor().equal(numbers({4, 2})));  // the group still works
  });
}

TEST_CASE("distributed tensor: every placement converts into every other on every mesh") {
  for (const auto& [ranks, shape] : kMeshes) {
    on_ranks(ranks, [&shape = shape](const ProcessGroup& group) {
      const ProcessMesh mesh(group, shape);
      const auto layouts = all_placements(shape.size());
      for (const auto& sizes : std::vector<std::vector<std::int64_t>>{{4, 4}, {5, 3}, {1, 7}, {2, 0}}) {
        const torch::Tensor whole = numbers(sizes);
        for (const Placements& from : layouts) {
          const DistributedTensor source = with_addends(whole, mesh, from);
          CHECK(source.full_tensor().equal(whole));
          CHECK(DistributedTensor::distribute(whole, mesh, from).full_tensor().equal(whole));
          for (const Placements& to : layouts) {
            const DistributedTensor made = source.redistribute(to);
            const bool has_addends =
                std::any_of(to.begin(), to.end(), [](const auto& each) { return std::holds_alternative<Partial>(each); });
            const bool fits = has_addends ? made.full_tensor().equal(whole) : made.local().equal(part(whole, made));
            if (!fits || made.local().sizes() != array_of(made.box().sizes) || made.placements() != to) {
              FAIL_CHECK("size " << torch::IntArrayRef(sizes) << ", from " << text_of(from) << "to " << text_of(to));
            }
          }
        }
      }
    });
  }
}

TEST_CASE("distributed tensor: rank 0's values are distributed, and parts own their memory") {
  on_ranks(3, [](const ProcessGroup& group) {
    const ProcessMesh mesh(group);
    const torch::Tensor own = numbers({5, 2}, 100 * group.rank()).to(torch::kBFloat16);
    const auto rows = DistributedTensor::distribute(own, mesh, {Shard{-2}});
    CHECK((rows.placements() == Placements{Shard{0}}));
    CHECK(rows.full_tensor().equal(numbers({5, 2}, 0).to(torch::kBFloat16)));
    CHECK(rows.local().storage().nbytes() == rows.local().nbytes());
    CHECK(rows.redistribute({Shard{0}}).local().is_same(rows.local()));
    CHECK(own.equal(numbers({5, 2}, 100 * group.rank()).to(torch::kBFloat16)));  // unchanged
  });
}

TEST_CASE("distributed tensor: gradients go back the way that the tensor came") {
  for (const auto& [ranks, shape] : kMeshes) {
    on_ranks(ranks, [&shape = shape](const ProcessGroup& group) {
      const ProcessMesh mesh(group, shape);
      const torch::Tensor whole = numbers({5, 3}), gradient = numbers({5, 3}, 50);
      const auto layouts = all_placements(shape.size());
      for (const Placements& from : layouts) {
        for (const Placements& to : layouts) {
          const DistributedTensor source = with_addends(whole, mesh, from);
          source.local().requires_grad_();
          const DistributedTensor made = source.redistribute(to);
          made.local().backward(part(gradient, made));  // along Partial axes, each addend's gradient is the gradient of the sum
          if (!source.local().grad().equal(part(gradient, source))) FAIL_CHECK("from " << text_of(from) << "to " << text_of(to));
        }
      }
    });
  }
}

TEST_CASE("distributed tensor: gradients of ranks with different work are added") {
  on_ranks(3, [](const ProcessGroup& group) {
    const ProcessMesh mesh(group);
    for (const TensorPlacement& placement : {TensorPlacement(Replicate{}), TensorPlacement(Shard{0})}) {
      const auto tensor = DistributedTensor::distribute(numbers({4, 2}), mesh, {placement});
      tensor.local().requires_grad_();
      // Each rank multiplies the whole by its rank plus one: 1 + 2 + 3 = 6.
      const torch::Tensor used = tensor.redistribute({Replicate{}}).to_local({Partial{}});
      (used * (group.rank() + 1)).sum().backward();
      CHECK(tensor.local().grad().equal(torch::full_like(tensor.local(), 6)));
      // Double backward: each of the 3 ranks contributes the gradient 2x of x^2.
      const torch::Tensor again = tensor.redistribute({Replicate{}}).to_local({Partial{}});
      const torch::Tensor first = torch::autograd::grad({again.pow(2).sum()}, {tensor.local()}, {}, true, true).front();
      CHECK(first.equal(6 * tensor.local()));
    }
    const auto kept = DistributedTensor::distribute(numbers({4, 2}), mesh, {Shard{1}});
    CHECK(kept.to_local({Shard{1}}).is_same(kept.local()));
  });
}

TEST_CASE("distributed tensor: a state dict holds it as a sharded tensor") {
  on_ranks(4, [](const ProcessGroup& group) {
    const ProcessMesh grid(group, {2, 2}, {"dp", "tp"});
    const auto tensor = DistributedTensor::distribute(numbers({5, 4}), grid, {Shard{1}, Shard{0}});
    StateDict state{{"table", tensor}};
    const ShardedTensor& sharded = state["table"].sharded();
    CHECK((sharded.size() == Extents{5, 4}));
    CHECK((*sharded.mesh() == grid.mesh()));
    CHECK((sharded.placements() == std::vector<Placement>{Shard{1}, Shard{0}}));
    CHECK(sharded.local_shards().front().tensor.is_same(tensor.local()));
    CHECK(sharded.all_chunks()->size() == 4);

    // A tensor on one axis of a grid is replicated over the other axes.
    const auto columns = DistributedTensor::distribute(numbers({5, 4}), grid.along("tp"), {Shard{1}});
    columns.declare();
    torch::nn::Module module;
    module.register_parameter("table", columns.local());
    const Dict of_module = module_state_dict(module);
    CHECK((*of_module.at("table").sharded().mesh() == grid.mesh()));
    CHECK((of_module.at("table").sharded().placements() == std::vector<Placement>{Replicate{}, Shard{1}}));
    torch::optim::Adam optimizer(module.parameters());
    const Dict of_optimizer = optimizer_state_dict(optimizer, &module);
    CHECK((of_optimizer.at("state")["table"]["exp_avg"].sharded().size() == Extents{5, 4}));
  });
}
