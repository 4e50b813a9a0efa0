#include <cairn/tests/support/torch.hpp>

#include <set>

#include <cairn/tests/support/thrown.hpp>
#include <cairn/tests/training/sharded_models.hpp>
#include <cairn/training/checkpoint_activations.hpp>
#include <cairn/training/replicate.hpp>
#include <cairn/training/state_dicts.hpp>

using namespace cairn;
using namespace cairn::testing;
using training::fully_shard;
using training::FullyShardOptions;
using training::Hooked;
using training::ProcessGroup;
using training::ProcessMesh;
using training::replicate;

namespace {

constexpr std::int64_t kWidth = 100;

template <class Model>
Hooked<Model> wide() {
  return seeded(0, [] { return Hooked<Model>(kWidth); });
}

// Compares five Adam steps with the base model. Each rank has its own input, a new one for each
// step, the same for both models. Results are exactly equal, because a sum of two addends does not
// depend on their order.
template <class Base, class Wrapped>
void check_parity(const ProcessGroup& group, Base& base, Wrapped& wrapped) {
  torch::optim::Adam base_optimizer(base->parameters(), 0.01), optimizer(wrapped->parameters(), 0.01);
  for (const auto& parameter : wrapped->parameters()) CHECK(is_here(parameter));
  const torch::Tensor inputs = seeded(static_cast<std::uint64_t>(group.rank()) + 1, [] { return torch::randn({5, 2, kWidth}); });
  for (int step = 0; step < 5; ++step) {
    const torch::Tensor input = inputs[step];
    clear_gradients(*base, true);
    clear_gradients(*wrapped, true);
    const torch::Tensor expected = base(input).sum(), loss = wrapped(input).sum();
    CHECK(loss.template item<float>() == expected.template item<float>());
    CHECK(loss.template item<float>() != 0);
    expected.backward();
    loss.backward();
    base_optimizer.step();
    optimizer.step();
  }
  CHECK(largest_difference(whole_parameters(*base), whole_parameters(*wrapped)) == 0);
}

}  // namespace

TEST_CASE("B5.6 replicate refuses a module that is fully sharded already, and takes another") {
  on_ranks(2, [](const ProcessGroup& group) {
    auto model = wide<Composite>();
    for (const auto& parameter : model->parameters()) CHECK(is_here(parameter));
    fully_shard(*model->l1, ProcessMesh(group));
    CHECK(thrown_by([&] { replicate(*model->l1, group); }) == Saying{ErrorCode::kPrecondition, "Cannot apply replicate"});
    replicate(*model->l2, group);
    CHECK(thrown_by([&] { replicate(*model->l2, group); }).says("Cannot apply replicate"));
    CHECK(thrown_by([&] { fully_shard(*model->l2, ProcessMesh(group)); }).code == ErrorCode::kPrecondition);
  });
}

TEST_CASE("B5.4 replicate covers exactly the parameters that no sharded child owns") {
  on_ranks(2, [](const ProcessGroup& group) {
    auto model = wide<CompositeWithParameters>();
    FullyShardOptions linear;
    linear.wrap_policy = training::wrap_classes<torch::nn::LinearImpl>();
    fully_shard(*model->u1, ProcessMesh(group), linear);
    fully_shard(*model->u2, ProcessMesh(group), linear);
    replicate(model, group);
    model(here(torch::ones({2, kWidth}))).sum().backward();
    const auto names = training::replicated_parameters(*model);
    CHECK((std::set<std::string>(names.begin(), names.end()) == std::set<std::string>{"l.weight", "l.bias", "p"}));
    for (const auto& parameter : model->named_parameters()) {
      CHECK(is_here(parameter.value()));
      CHECK(parameter.value().grad().defined());
    }
  });
}

TEST_CASE("B5.7 replicate and fully_shard compose, against a replicated model") {
  on_ranks(2, [](const ProcessGroup& group) {
    const ProcessMesh mesh(group);
    FullyShardOptions by_unit;
    by_unit.wrap_policy = training::wrap_classes<UnitImpl>();
    for (const bool is_layer : {true, false}) {  // child sharded (a plain layer, a unit), root replicated
      auto base = wide<Composite>(), model = wide<Composite>();
      replicate(base, group);
      is_layer ? fully_shard(*model->l1, mesh) : fully_shard(*model->u1, mesh);
      replicate(model, group);
      check_parity(group, base, model);
    }
    for (const int kind : {0, 1, 2, 3, 4}) {
      CAPTURE(kind);
      auto base = wide<CompositeWithParameters>(), model = wide<CompositeWithParameters>();
      replicate(base, group);
      if (kind == 4) {  // grandchildren sharded, children replicated
        for (auto* unit : {&model->u1, &model->u2}) {
          fully_shard((*unit)->seq, mesh);
          replicate(**unit, group);
        }
      } else {  // one child replicated; for kinds 2 and 3 the other one sharded, for kind 3 with the policy
        replicate(*model->u1, group);
        if (kind >= 2) fully_shard(*model->u2, mesh, kind == 3 ? by_unit : FullyShardOptions{});
      }
      fully_shard(model, mesh, kind == 1 ? by_unit : FullyShardOptions{});
      CHECK(training::memory_use(*model).shards < parameter_bytes(*base));
      check_parity(group, base, model);
      CHECK(training::memory_use(*model).gathered_peak > 0);
      CHECK(training::memory_use(*model).gathered_peak < parameter_bytes(*base));
      CHECK(training::memory_use(*model).gathered == 0);
    }
  });
}

TEST_CASE("replicate: gradients of several buckets are the mean of all ranks") {
  on_ranks(3, [](const ProcessGroup& group) {
    auto plain = wide<Unit>();
    auto model = seeded(static_cast<std::uint64_t>(group.rank()), [] { return Hooked<Unit>(kWidth); });
    training::ReplicateOptions small;
    small.bucket_bytes = kWidth * kWidth * 4;  // one weight per bucket
    replicate(model, group, small);
    CHECK(largest_difference(plain->parameters(), whole_parameters(*model)) == 0);
    for (const auto& [name, value] : training::get_model_state_dict(*model)) CHECK(value.is_tensor());
    const torch::Tensor inputs = seeded(1, [] { return torch::randn({3, 2, kWidth}); });
    plain(inputs.view({6, kWidth})).mean().backward();
    model(inputs[group.rank()]).mean().backward();
    const auto expected = plain->parameters(), found = model->parameters();
    for (std::size_t i = 0; i < expected.size(); ++i)
      CHECK((expected[i].grad() - found[i].grad()).abs().max().item<double>() <= 1e-7);
    // the model computes directly with the parameters that the optimizer updates
    CHECK(training::memory_use(*model).gathered_peak == 0);
  });
}

TEST_CASE("replicate: a recomputed block that is called twice gets both gradients") {
  struct TwiceImpl : torch::nn::Module {
    explicit TwiceImpl(std::int64_t width) : block(width) { register_module("block", block); }
    torch::Tensor forward(const torch::Tensor& x) { return block(block(x)); }
    Hooked<Unit> block;
  };
  on_ranks(2, [](const ProcessGroup& group) {
    auto plain = wide<TwiceImpl>(), model = wide<TwiceImpl>();
    training::ReplicateOptions small;
    small.bucket_bytes = 1;
    replicate(model, group, small);
    training::checkpoint_activations(model->block, of_own_generator());
    const torch::Tensor input = here(torch::ones({2, kWidth}));
    for (int pass = 0; pass < 2; ++pass) {
      plain(input).sum().backward();
      model(input).sum().backward();
    }
    const auto expected = plain->parameters(), found = model->parameters();
    REQUIRE(found.size() == expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) CHECK(torch::allclose(found[i].grad(), expected[i].grad(), 1e-4, 1e-5));
  });
}
