#include <cairn/tests/support/torch.hpp>

#include <cairn/tests/support/thrown.hpp>
#include <cairn/tests/training/sharded_models.hpp>
#include <cairn/training/checkpoint_activations.hpp>
#include <cairn/training/torch_compat.hpp>

using namespace cairn;
using namespace cairn::testing;
using training::checkpoint_activations;
using training::fully_shard;
using training::FullyShardOptions;
using training::Hooked;
using training::ProcessGroup;
using training::ProcessMesh;

namespace {

template <class Model>
Hooked<Model> hundred_wide() {
  return seeded(0, [] { return Hooked<Model>(100); });
}

// Compares five Adam steps with the plain model. All ranks use the same input. Gradients are set to
// None or to zero before each step. `shards`: the bytes that this rank holds of wrapped parameters.
template <class Plain, class Wrapped>
void check_steps(Plain& plain, Wrapped& wrapped, bool to_none, std::int64_t shards) {
  for (const auto& parameter : wrapped->parameters()) CHECK(is_here(parameter));
  torch::optim::Adam plain_optimizer(plain->parameters(), 0.01), optimizer(wrapped->parameters(), 0.01);
  for (int step = 0; step < 5; ++step) {
    const torch::Tensor input = seeded(0, [] { return torch::randn({2, 100}); });
    clear_gradients(*plain, to_none);
    clear_gradients(*wrapped, to_none);
    CHECK(training::memory_use(*wrapped).shards == shards);
    CHECK(training::memory_use(*wrapped).gathered == 0);
    const torch::Tensor expected = plain(input).sum(), loss = wrapped(input).sum();
    CHECK(loss.template item<float>() == expected.template item<float>());
    CHECK(loss.template item<float>() != 0);
    expected.backward();
    loss.backward();
    plain_optimizer.step();
    optimizer.step();
  }
  CHECK(largest_difference(whole_parameters(*plain), whole_parameters(*wrapped)) == 0);
  CHECK(training::memory_use(*wrapped).gathered == 0);
}

FullyShardOptions linear_policy() {
  FullyShardOptions options;
  options.wrap_policy = training::wrap_classes<torch::nn::LinearImpl>();
  return options;
}

}  // namespace

TEST_CASE("activation checkpointing: unsupported results are refused") {
  struct PairImpl : torch::nn::Module {
    std::tuple<torch::Tensor, torch::Tensor> forward(const torch::Tensor& x) { return {x, x}; }
  };
  Hooked<PairImpl> pair;
  checkpoint_activations(pair);
  CHECK(thrown_by([&] { pair(torch::ones({2})); }).code == ErrorCode::kUnsupported);
  {
    const torch::NoGradGuard no_grad;
    CHECK(std::get<0>(pair(torch::ones({2}))).sum().item<float>() == 2);
  }
  struct ThrowingImpl : torch::nn::Module {
    torch::Tensor forward(const torch::Tensor& x) {
      if (++calls == 2) throw std::runtime_error("the second time");
      return x * 2;
    }
    int calls = 0;
  };
  Hooked<ThrowingImpl> throwing;
  checkpoint_activations(throwing);
  torch::Tensor input = torch::ones({2}).requires_grad_();
  const torch::Tensor loss = throwing(input).sum();
  CHECK_THROWS_WITH_AS(loss.backward(), "the second time", std::runtime_error);
  throwing(input).sum().backward();
  CHECK(input.grad().sum().item<float>() == 4);
}

TEST_CASE("activation checkpointing: gradients and random draws equal those without it") {
  struct NoisyImpl : torch::nn::Module {
    NoisyImpl() : linear(6, 6) { register_module("linear", linear); }
    torch::Tensor forward(const torch::Tensor& x, double factor, torch::Tensor bias) {
      ++calls;
      return torch::dropout(torch::relu(linear(x)), 0.5, true) * factor + bias;
    }
    Hooked<torch::nn::Linear> linear;
    int calls = 0;
  };
  torch::manual_seed(0);
  auto plain = here(Hooked<NoisyImpl>());
  torch::manual_seed(0);
  auto model = here(Hooked<NoisyImpl>());
  checkpoint_activations(model);
  checkpoint_activations(model->linear);
  const auto run = [](Hooked<NoisyImpl>& of) {
    torch::manual_seed(3);
    const auto options = torch::dtype(torch::kFloat).device(rank_device());
    torch::Tensor x = torch::randn({4, 6}, options).requires_grad_(), bias = torch::randn({6}, options).requires_grad_();
    of(x, 2.5, bias).pow(2).sum().backward();
    return std::vector<torch::Tensor>{x.grad(), bias.grad(), of->linear->weight.grad(), of->linear->bias.grad(),
                                      torch::rand({1}, options)};
  };
  CHECK(largest_difference(run(plain), run(model)) == 0);
  CHECK(plain->calls == 1);
  CHECK(model->calls == 2);
  const torch::NoGradGuard no_grad;
  model(here(torch::ones({1, 6})), 1.0, here(torch::ones({6})));
  CHECK(model->calls == 3);
}

TEST_CASE("activation checkpointing: autocast keeps no casts of recomputed parameters") {
  struct ConvolutionImpl : torch::nn::Module {
    ConvolutionImpl() : convolution(torch::nn::Conv1dOptions(4, 4, 3).padding(1)) { register_module("convolution", convolution); }
    torch::Tensor forward(const torch::Tensor& x) { return convolution(torch::relu(x)); }
    torch::nn::Conv1d convolution;
  };
  const auto made = [] { return seeded(1, [] { return Hooked<ConvolutionImpl>(); }); };
  auto plain = made(), model = made();
  checkpoint_activations(model);
  torch::optim::SGD plain_optimizer(plain->parameters(), 0.1), optimizer(model->parameters(), 0.1);
  const torch::Tensor input = seeded(3, [] { return torch::randn({2, 4, 8}); });
  const auto device = rank_device().type();
  const training::Autocast before = training::autocast_on(device);
  const auto loss_of = [&](Hooked<ConvolutionImpl>& of, bool twice) {
    training::set_autocast_on(device, {true, torch::kBFloat16});
    torch::Tensor loss = of(input).to(torch::kFloat).pow(2).mean();
    if (twice) loss = loss + of->convolution(input).to(torch::kFloat).pow(2).mean();
    at::autocast::clear_cache();
    training::set_autocast_on(device, before);
    return loss;
  };
  for (int step = 0; step < 3; ++step) {
    clear_gradients(*plain, true);
    clear_gradients(*model, true);
    const torch::Tensor expected = loss_of(plain, false), loss = loss_of(model, false);
    CHECK(loss.item<float>() == expected.item<float>());
    expected.backward();
    loss.backward();
    plain_optimizer.step();
    optimizer.step();
  }
  clear_gradients(*plain, true);
  clear_gradients(*model, true);
  loss_of(plain, true).backward();
  loss_of(model, true).backward();
  const torch::Tensor expected = plain->convolution->weight.grad();
  CHECK((model->convolution->weight.grad() - expected).norm().item<float>() < 0.02 * expected.norm().item<float>());
}

TEST_CASE("activation checkpointing: backward passes that it cannot be part of are refused") {
  auto model = hundred_wide<UnitImpl>();
  checkpoint_activations(model);
  const torch::Tensor input = here(torch::ones({2, 100})).requires_grad_();
  CHECK(thrown_by([&] { torch::autograd::grad({model(input).sum()}, {input}); }).says("chosen tensors alone"));
  CHECK_FALSE(model->l1->weight.grad().defined());
  CHECK(thrown_by([&] { model(input).sum().backward({}, /*retain_graph=*/true, /*create_graph=*/true); }).says("create_graph"));
}

TEST_CASE("hooked: forward takes vectors, optionals, missing arguments and references") {
  struct ManyImpl : torch::nn::Module {
    torch::Tensor forward(torch::Tensor& x, const std::vector<torch::Tensor>& more, std::optional<torch::Tensor> bias,
                          const torch::Tensor& mask) {
      seen = {x.scalar_type(), more.at(0).scalar_type(), bias->scalar_type()};
      CHECK_FALSE(mask.defined());
      return x + more.at(0) + *bias;
    }
    std::vector<at::ScalarType> seen;
  };
  Hooked<ManyImpl> model;
  torch::Tensor x = here(torch::ones({2})).requires_grad_();
  std::vector<torch::Tensor> more{x};
  std::optional<torch::Tensor> bias = x;
  SUBCASE("as they are") {
    model(x, more, bias, torch::Tensor());
    CHECK((model->seen == std::vector<at::ScalarType>(3, at::kFloat)));
  }
  SUBCASE("cast") {
    model.boundary()->input_type = at::kBFloat16;
    model(x, more, bias, torch::Tensor());
    CHECK((model->seen == std::vector<at::ScalarType>(3, at::kBFloat16)));
    model(x, std::vector<torch::Tensor>{x}, std::optional<torch::Tensor>(x), torch::Tensor());
    CHECK((model->seen == std::vector<at::ScalarType>(3, at::kBFloat16)));
    CHECK((x.scalar_type() == at::kFloat));
  }
  SUBCASE("computed anew") {
    checkpoint_activations(model);
    model(x, more, bias, torch::Tensor()).sum().backward();
    CHECK(x.grad().defined());
  }
}

TEST_CASE("B5.1 activation checkpointing and full sharding on the same submodule") {
  on_ranks(2, [](const ProcessGroup& group) {
    for (const bool to_none : {true, false}) {
      for (const bool checkpoint_first : {true, false}) {
        auto plain = hundred_wide<UnitImpl>(), model = hundred_wide<UnitImpl>();
        if (checkpoint_first) checkpoint_activations(model->seq, of_own_generator());
        fully_shard(model->seq, ProcessMesh(group), linear_policy());
        if (!checkpoint_first) checkpoint_activations(model->seq, of_own_generator());
        const std::int64_t whole = parameter_bytes(*plain->seq);
        check_steps(plain, model, to_none, whole / 2);
        CHECK(training::memory_use(*model).gathered_peak == whole);
      }
    }
  });
}

TEST_CASE("B5.2 sharded units train with activation checkpointing on their sequences") {
  on_ranks(2, [](const ProcessGroup& group) {
    for (const bool to_none : {true, false}) {
      auto plain = hundred_wide<CompositeImpl>(), model = hundred_wide<CompositeImpl>();
      FullyShardOptions none;
      none.wrap_policy = nullptr;
      fully_shard(*model->u1, ProcessMesh(group), none);
      fully_shard(*model->u2, ProcessMesh(group));
      checkpoint_activations(model->u1->seq, of_own_generator());
      checkpoint_activations(model->u2->seq, of_own_generator());
      const std::int64_t unit = parameter_bytes(*plain->u1);
      check_steps(plain, model, to_none, unit);  // half of each of two
      for (auto* const wrapped : {&model->u1, &model->u2}) CHECK(training::memory_use(**wrapped).gathered_peak == unit);
    }
  });
}

TEST_CASE("B5.3 activation checkpointing records float32 inputs under mixed precision") {
  struct ChildImpl : torch::nn::Module {
    ChildImpl() : linear(100, 100), seq(linear, torch::nn::ReLU()) { register_module("seq", seq); }
    torch::Tensor forward(const torch::Tensor& x) {
      seen.push_back(x.scalar_type());
      return seq(casts_itself ? x.to(linear->weight.scalar_type()) : x);
    }
    torch::nn::Linear linear;
    Hooked<torch::nn::Sequential> seq;
    std::vector<at::ScalarType> seen;
    bool casts_itself = false;
  };
  struct ModelImpl : torch::nn::Module {
    ModelImpl() {
      register_module("c1", c1);
      register_module("c2", c2);
    }
    torch::Tensor forward(const torch::Tensor& x) {
      seen.push_back(x.scalar_type());
      return c2(c1(x));
    }
    Hooked<ChildImpl> c1, c2;
    std::vector<at::ScalarType> seen;
  };
  bool cast_inputs = true;
  SUBCASE("inputs cast to the type of the module") { cast_inputs = true; }
  SUBCASE("without cast_forward_inputs: float32, float32, float32") { cast_inputs = false; }
  on_ranks(2, [&](const ProcessGroup& group) {
    const at::ScalarType half_type = ranks_use_cuda() ? at::kHalf : at::kBFloat16;
    for (const bool inside : {false, true}) {
      auto model = seeded(0, [] { return Hooked<ModelImpl>(); });
      FullyShardOptions half, whole;
      half.mixed_precision.parameters = half_type;
      half.mixed_precision.cast_forward_inputs = cast_inputs;
      whole.mixed_precision.parameters = at::kFloat;
      model->c2->casts_itself = !cast_inputs;
      fully_shard(model->c2, ProcessMesh(group), half);
      fully_shard(model, ProcessMesh(group), whole);  // c1 too
      if (inside) {
        checkpoint_activations(model->c2->seq, of_own_generator());
      } else {
        checkpoint_activations(model->c2, of_own_generator());
      }
      const torch::Tensor output = model(here(torch::zeros({2, 100})));
      CHECK((output.scalar_type() == half_type));
      CHECK(is_here(output));
      output.sum().backward();
      CHECK((model->seen == std::vector<at::ScalarType>{at::kFloat}));
      CHECK((model->c1->seen == std::vector<at::ScalarType>{at::kFloat}));
      CHECK((model->c2->seen == std::vector<at::ScalarType>(inside ? 1 : 2, cast_inputs ? half_type : at::kFloat)));
      for (const auto& parameter : model->parameters()) {
        CHECK(is_here(parameter));
        CHECK((parameter.scalar_type() == at::kFloat));
        CHECK((parameter.grad().scalar_type() == at::kFloat));
      }
    }
  });
}

TEST_CASE("B5.5 activation checkpointing on submodules, the root fully sharded or whole") {
  on_ranks(2, [](const ProcessGroup& group) {
    for (const auto strategy : {training::ShardingStrategy::kFull, training::ShardingStrategy::kNoShard}) {
      for (const bool to_none : {true, false}) {
        auto plain = hundred_wide<CompositeWithParametersImpl>(), model = hundred_wide<CompositeWithParametersImpl>();
        checkpoint_activations(model->u1->seq, of_own_generator());
        checkpoint_activations(model->u2->seq, of_own_generator());
        FullyShardOptions options;
        options.strategy = strategy;
        options.bucket_bytes = 50'000;
        fully_shard(model, ProcessMesh(group), options);
        const bool cut = strategy == training::ShardingStrategy::kFull;
        const std::int64_t whole = parameter_bytes(*plain);
        check_steps(plain, model, to_none, cut ? whole / 2 : whole);
        CHECK(training::memory_use(*model).gathered_peak == (cut ? whole : 0));
      }
    }
  });
}
