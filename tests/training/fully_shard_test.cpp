#include <cairn/tests/support/torch.hpp>

#include <limits>
#include <sstream>

#include <cairn/tests/messages/allocation_meter.hpp>
#include <cairn/tests/support/thrown.hpp>
#include <cairn/tests/training/sharded_models.hpp>

using namespace cairn;
using namespace cairn::testing;
using training::fully_shard;
using training::FullyShardOptions;
using training::Hooked;
using training::ProcessGroup;
using training::ProcessMesh;
using training::ShardingStrategy;

namespace {

template <class Model, class... Arguments>
Hooked<Model> model_of(Arguments&&... arguments) {
  return seeded(0, [&] { return Hooked<Model>(std::forward<Arguments>(arguments)...); });
}

torch::Tensor input_of(std::int64_t rows, std::int64_t columns, std::uint64_t seed = 1) {
  return seeded(seed, [&] { return torch::randn({rows, columns}); });
}

// Trains both models on the same input for `steps` steps. Returns the largest difference of any
// loss and of the final parameters.
template <class Plain, class Sharded, class Make>
double train_both(Plain& plain, Sharded& sharded, const torch::Tensor& input, int steps, const Make& make_optimizer) {
  auto plain_optimizer = make_optimizer(plain->parameters()), optimizer = make_optimizer(sharded->parameters());
  double largest = 0;
  for (int step = 0; step < steps; ++step) {
    plain_optimizer.zero_grad();
    optimizer.zero_grad();
    const torch::Tensor expected = plain(input).pow(2).mean(), loss = sharded(input).pow(2).mean();
    largest = std::max(largest, std::abs(expected.template item<double>() - loss.template item<double>()));
    expected.backward();
    loss.backward();
    plain_optimizer.step();
    optimizer.step();
  }
  return std::max(largest, largest_difference(whole_parameters(*plain), whole_parameters(*sharded)));
}
template <class Plain, class Sharded>
double train_both(Plain& plain, Sharded& sharded, const torch::Tensor& input, int steps = 5) {
  const auto adam = [](const std::vector<torch::Tensor>& parameters) { return torch::optim::Adam(parameters, 0.01); };
  return train_both(plain, sharded, input, steps, adam);
}

}  // namespace

TEST_CASE("fully_shard: modules that cannot be sharded are refused") {
  on_ranks(2, [](const ProcessGroup& group) {
    const ProcessMesh mesh(group);
    auto model = model_of<Chain>(std::vector<std::int64_t>{4, 6, 2});
    fully_shard(*model->layers[0], mesh);
    fully_shard(*model, mesh);
    CHECK(thrown_by([&] { fully_shard(*model, mesh); }) == Saying{ErrorCode::kPrecondition, "fully sharded already"});
    CHECK(thrown_by([&] { fully_shard(*model->layers[0], mesh); }).says("fully sharded already"));

    torch::nn::Module scalar;
    scalar.register_parameter("scale", torch::ones({}));
    CHECK(thrown_by([&] { fully_shard(scalar, mesh); }).code == ErrorCode::kUnsupported);
    torch::nn::Module complex;
    complex.register_parameter("phase", torch::ones({2, 2}, torch::kComplexFloat));
    CHECK(thrown_by([&] { fully_shard(complex, mesh); }).says("is complex"));
    auto aliased = model_of<Chain>(std::vector<std::int64_t>{4, 4, 4});
    aliased->layers[1]->weight.set_data(aliased->layers[0]->weight.detach());
    CHECK(thrown_by([&] { fully_shard(*aliased, mesh); }).says("\"net2.weight\" shares its memory"));
    // adjacent in memory, like the weights of recurrent layers in cuDNN
    auto side_by_side = model_of<Chain>(std::vector<std::int64_t>{4, 4});
    const torch::Tensor memory =
        torch::cat({side_by_side->layers[0]->weight.detach().reshape({-1}), side_by_side->layers[0]->bias.detach()});
    side_by_side->layers[0]->weight.set_data(memory.narrow(0, 0, 16).view({4, 4}));
    side_by_side->layers[0]->bias.set_data(memory.narrow(0, 16, 4));
    fully_shard(*side_by_side, mesh);
    auto overlapping = model_of<Chain>(std::vector<std::int64_t>{4, 4});
    overlapping->layers[0]->bias.set_data(overlapping->layers[0]->weight.detach().view({-1}).narrow(0, 12, 4));
    CHECK(thrown_by([&] { fully_shard(*overlapping, mesh); }).says("shares its memory"));
    FullyShardOptions own;
    own.prefetch = group.rank() == 0;
    CHECK(thrown_by([&] { fully_shard(*aliased->layers[0], mesh, own); }).code == ErrorCode::kMismatch);

    const ProcessMesh wide(group, {2, 1, 1}, {}, "wide");
    auto other = model_of<Chain>(std::vector<std::int64_t>{4, 2});
    CHECK(thrown_by([&] { fully_shard(*other, wide); }).code == ErrorCode::kInvalidArgument);

    auto different = model_of<Chain>(std::vector<std::int64_t>{4, group.rank() + 2});
    CHECK(thrown_by([&] { fully_shard(*different, mesh); }) ==
          Saying{ErrorCode::kMismatch, "rank 1 passed a different module or different options than rank 0"});
    CHECK(different->parameters()[0].size(0) == group.rank() + 2);  // unchanged
  });
}

TEST_CASE("fully_shard: misuse of shards is an error that says what to do") {
  on_ranks(2, [](const ProcessGroup& group) {
    const ProcessMesh mesh(group);
    auto model = model_of<Chain>(std::vector<std::int64_t>{4, 6, 2});
    const torch::Tensor input = input_of(3, 4);
    torch::optim::SGD early(model->parameters(), 0.1);
    fully_shard(model, mesh);
    const auto refused = [&](const auto& call) {
      const torch::NoGradGuard no_grad;
      const Thrown thrown = thrown_by(call);
      CHECK(thrown == Saying{ErrorCode::kPrecondition, "net1.weight"});
    };
    refused([&] { model->layers[0]->weight.mul_(2); });
    refused([&] { model->layers[0]->weight.detach().zero_(); });
    refused([&] { torch::nn::init::ones_(model->layers[0]->weight); });
    refused([&] { model->layers[0]->weight.copy_(here(torch::ones({6, 4}))); });

    model(input).sum().backward();
    CHECK(thrown_by([&] { early.step(); }) == Saying{ErrorCode::kPrecondition, "make the optimizer after fully_shard"});
    CHECK(thrown_by([&] { model->layers[0]->weight.grad().norm(); }).says("those of the shards"));
    CHECK((model->parameters()[0].grad().sizes() == torch::IntArrayRef({3, 4})));

    std::vector<torch::Storage> kept;  // the unit is destroyed with its last shard
    for (const auto& parameter : model->parameters()) kept.push_back(parameter.storage());
    model->to(torch::kDouble);
    CHECK(thrown_by([&] { model(input); }) == Saying{ErrorCode::kPrecondition, "was cast"});
  });
}

TEST_CASE("fully_shard: LibTorch's operations on whole shards are refused") {
  on_ranks(2, [](const ProcessGroup& group) {
    const ProcessMesh mesh(group);
    auto model = model_of<Chain>(std::vector<std::int64_t>{4, 6, 2});
    fully_shard(model, mesh);
    model(input_of(3, 4)).pow(2).sum().backward();
    const std::vector<torch::Tensor> parameters = model->parameters();
    const torch::Tensor parameter = parameters[0], gradient = parameter.grad();
    const auto refused = [](const auto& call) {
      const torch::NoGradGuard no_grad;
      const Thrown thrown = thrown_by(call);
      CHECK(thrown == Saying{ErrorCode::kUnsupported, "training::clip_grad_norm"});
      CHECK(thrown.says("local_tensor"));
    };
    for (const double norm_type : {2.0, 1.0, std::numeric_limits<double>::infinity()})
      refused([&] { torch::nn::utils::clip_grad_norm_(parameters, 1.0, norm_type); });
    refused([&] { torch::nn::utils::parameters_to_vector(parameters); });
    for (const torch::Tensor& tensor :
         {parameter, gradient, parameter.detach(), gradient.view({-1}), gradient * 2, gradient.clone()}) {
      refused([&] { tensor.norm(); });
      refused([&] { tensor.sum(); });
      refused([&] { tensor.mean(); });
      refused([&] { tensor.max(); });
      refused([&] { tensor.pow(2).sum(); });
      refused([&] { tensor.sum(0); });
      refused([&] { tensor.sum(0, /*keepdim=*/true); });
      refused([&] { tensor.softmax(0); });
      refused([&] { at::linalg_vector_norm(tensor); });
      refused([&] { torch::isfinite(tensor).all(); });
      refused([&] { at::_foreach_norm({tensor}); });
      refused([&] { torch::cat({tensor.reshape({-1})}); });
    }
    refused([&] { parameter.t().mm(parameter); });
    refused([&] { torch::mse_loss(parameter, here(torch::zeros({3, 4}))); });
    torch::optim::LBFGS whole_vector(parameters, torch::optim::LBFGSOptions(0.1));
    const Thrown by_optimizer = thrown_by([&] {
      whole_vector.step([&] {
        const torch::AutoGradMode with_gradients(true);
        const torch::Tensor loss = model(input_of(3, 4)).pow(2).sum();
        loss.backward();
        return loss;
      });
    });
    CHECK(by_optimizer.code == ErrorCode::kUnsupported);

    auto whole = model_of<Chain>(std::vector<std::int64_t>{4, 2});
    FullyShardOptions not_cut;
    not_cut.strategy = ShardingStrategy::kNoShard;
    fully_shard(whole, mesh, not_cut);
    whole(input_of(3, 4)).sum().backward();
    CHECK(torch::nn::utils::clip_grad_norm_(whole->parameters(), 1e-3) > 0);
    CHECK(whole->parameters()[0].norm().item<float>() > 0);

    // Elementwise operations on shards work, and so do the results of local_tensor, full_tensor and
    // full_grad.
    const torch::NoGradGuard no_grad;
    std::ostringstream printed;
    printed << parameter << gradient;
    parameter.mul_(1);
    gradient.add_(parameter, 0).clamp_(-1, 1);
    torch::where(gradient > 0, gradient, parameter).sqrt().add_(1);
    torch::nn::utils::clip_grad_value_(parameters, 0.5);
    parameter.copy_(parameter.clone());
    CHECK(parameter[0][0].item<float>() == training::local_tensor(parameter)[0][0].item<float>());
    CHECK(here(torch::zeros({3, 4})).add_(gradient).sum().item<float>() == training::local_tensor(gradient).sum().item<float>());
    CHECK(torch::zeros_like(parameter).sum().item<float>() == 0);
    CHECK(parameter.new_zeros({2}).sum().item<float>() == 0);
    torch::Tensor squares = training::local_tensor(gradient).pow(2).sum();
    group.all_reduce(squares);
    CHECK(squares.sqrt().item<float>() == doctest::Approx(training::full_grad(parameter).norm().item<float>()));
    CHECK(training::full_tensor(parameter).norm().item<float>() > 0);
    training::local_tensor(parameter).zero_();
    CHECK(training::full_tensor(parameter).abs().max().item<float>() == 0);
  });
}

TEST_CASE("fully_shard: the cost of one operation does not grow with the number of units") {
  for (const int ranks : {1, 2}) {
    on_ranks(ranks, [](const ProcessGroup& group) {
      const ProcessMesh mesh(group);
      const auto bytes_per_unit = [&](std::size_t units) {
        auto model = model_of<Chain>(std::vector<std::int64_t>(units + 1, 2));
        for (auto& layer : model->layers) fully_shard(*layer, mesh);
        fully_shard(model, mesh);
        const torch::Tensor input = input_of(2, 2);
        model(input).sum().backward();
        model->zero_grad();
        const AllocationMeter meter;
        model(input).sum().backward();
        return static_cast<double>(meter.bytes()) / static_cast<double>(units);
      };
      const std::size_t many = group.size() == 1 ? 1024 : 256;
      const double of_few = bytes_per_unit(16), of_many = bytes_per_unit(many);
      CHECK(of_many <= 1.5 * of_few);
    });
  }
}

TEST_CASE("fully_shard: trains as the plain model does, within the stated memory") {
  bool prefetch = false;
  SUBCASE("gathering units when they are used") { prefetch = false; }
  SUBCASE("gathering the next unit ahead") { prefetch = true; }
  for (const int size : {1, 2, 4}) {
    CAPTURE(size);
    on_ranks(size, [&](const ProcessGroup& group) {
      const ProcessMesh mesh(group);
      auto plain = model_of<CompositeWithParameters>(16), model = model_of<CompositeWithParameters>(16);
      std::int64_t whole = 0;
      for (const auto& parameter : plain->parameters()) whole += static_cast<std::int64_t>(parameter.nbytes());
      FullyShardOptions options;
      options.prefetch = prefetch;
      fully_shard(*model->u1, mesh, options);
      fully_shard(*model->u2, mesh, options);
      fully_shard(model, mesh, options);

      // Names are the plain model's. Each rank holds its rows.
      CHECK((model->named_parameters().keys() == plain->named_parameters().keys()));
      std::int64_t held = 0;
      for (const auto& parameter : model->parameters()) {
        CHECK(parameter.size(0) == 16 / size);
        held += static_cast<std::int64_t>(parameter.storage().nbytes());
      }
      CHECK(held == whole / size);
      CHECK(training::memory_use(*model).shards == held);
      CHECK(training::memory_use(*model).gathered == 0);
      CHECK_FALSE(model->p.storage().data());

      const torch::Tensor input = input_of(2, 16);
      const double difference = train_both(plain, model, input);
      CHECK(difference == 0);  // 1, 2 and 4 ranks with the same input: sums and quotients are exact

      const std::int64_t unit = 3 * (16 * 16 + 16) * 4, root = (2 * 16 * 16 + 16) * 4;
      CHECK(whole == 2 * unit + root);
      const auto use = training::memory_use(*model);
      CHECK(use.gathered == 0);
      // Gathered at most: one unit, the root around it, and the prefetched unit. With one rank,
      // nothing needs a copy.
      CHECK(use.gathered_peak == (size == 1 ? 0 : unit + root + (prefetch ? unit : 0)));
      // Five steps, three units, forward and backward, with no superfluous gather. The root stays
      // gathered while other units are gathered and freed.
      CHECK(use.gathers == 5 * 6);
      CHECK_FALSE(model->u1->l1->weight.storage().data());
    });
  }
}

TEST_CASE("fully_shard: shards in host memory train as those on the device do") {
  FullyShardOptions options;
  options.offload_to_host = true;
  SUBCASE("parameters cut over the ranks") {}
  SUBCASE("whole parameters") { options.strategy = training::ShardingStrategy::kNoShard; }
  SUBCASE("computing in another type") { options.mixed_precision.parameters = torch::kBFloat16; }
  for (const int size : {1, 2}) {
    CAPTURE(size);
    on_ranks(size, [&](const ProcessGroup& group) {
      const ProcessMesh mesh(group);
      auto there = model_of<CompositeWithParameters>(16), model = model_of<CompositeWithParameters>(16);
      FullyShardOptions on_device = options;
      on_device.offload_to_host = false;
      fully_shard(*there->u1, mesh, on_device);
      fully_shard(there, mesh, on_device);
      fully_shard(*model->u1, mesh, options);
      fully_shard(model, mesh, options);
      // Adam may round differently on a device than on the CPU.
      CHECK(train_both(there, model, input_of(2, 16)) <= (ranks_use_cuda() ? 1e-5 : 0));
      for (const auto& parameter : model->parameters()) {
        CHECK(parameter.device().is_cpu());
        CHECK(parameter.grad().device().is_cpu());
        CHECK(parameter.is_pinned() == ranks_use_cuda());
      }
      CHECK(model->l->weight.device() == rank_device());
      CHECK(std::isfinite(training::clip_grad_norm(*model, 1.0)));
    });
  }
}

TEST_CASE("fully_shard: uneven and empty shards, 3 and 4 ranks") {
  for (const int size : {3, 4}) {
    on_ranks(size, [&](const ProcessGroup& group) {
      auto plain = model_of<Chain>(std::vector<std::int64_t>{5, 10, 15, 30, 5});
      auto model = model_of<Chain>(std::vector<std::int64_t>{5, 10, 15, 30, 5});
      FullyShardOptions options;
      options.wrap_policy = training::wrap_classes<torch::nn::LinearImpl>();
      fully_shard(model, ProcessMesh(group), options);
      if (size == 4 && group.rank() == 3) CHECK(model->parameters()[7].numel() == 0);
      // With 3 ranks, the mean is inexact: three thirds do not add up to one.
      CHECK(train_both(plain, model, input_of(4, 5)) <= (size == 3 ? 1e-6 : 0));
    });
  }
}

TEST_CASE("fully_shard: wrap_from_size makes units of large modules") {
  on_ranks(2, [](const ProcessGroup& group) {
    const std::vector<std::int64_t> sizes{8, 16, 32, 64, 8};  // layers of 144, 544, 2112 and 520 elements
    const std::pair<std::int64_t, std::int64_t> units_from[] = {{1, 4}, {500, 4}, {544, 3}, {545, 2}, {2112, 2}, {2113, 1}};
    for (const auto& [elements, units] : units_from) {
      const auto& shown = elements;
      CAPTURE(shown);
      auto plain = model_of<Chain>(sizes), model = model_of<Chain>(sizes);
      FullyShardOptions options;
      options.wrap_policy = training::wrap_from_size(elements);
      fully_shard(model, ProcessMesh(group), options);
      const torch::NoGradGuard no_grad;
      CHECK(model(input_of(2, 8)).equal(plain(input_of(2, 8))));
      CHECK(training::memory_use(*model).gathers == units);  // each unit once
    }
    // Elements that inner units have taken do not count for the modules around them.
    auto model = model_of<Composite>(16);
    FullyShardOptions options;
    options.wrap_policy = training::wrap_from_size(16 * 16 + 16);  // every layer; the units have nothing left
    fully_shard(model, ProcessMesh(group), options);
    const torch::NoGradGuard no_grad;
    model(input_of(2, 16));
    CHECK(training::memory_use(*model).gathers == 8);
  });
}

TEST_CASE("fully_shard: replicas begin with what the first of them has") {
  on_ranks(4, [&](const ProcessGroup& group) {
    const auto own = [&] {
      return seeded(static_cast<std::uint64_t>(group.rank()), [] { return Hooked<torch::nn::Linear>(4, 4); });
    };
    FullyShardOptions whole;
    whole.strategy = training::ShardingStrategy::kNoShard;
    Hooked<torch::nn::Linear> hybrid = own(), replicated = own();
    fully_shard(hybrid, ProcessMesh(group, {2, 2}));
    fully_shard(replicated, ProcessMesh(group), whole);
    const auto first = [&](int rank) {
      return seeded(static_cast<std::uint64_t>(rank), [] { return torch::nn::Linear(4, 4); })->weight.detach();
    };
    CHECK(whole_parameters(*replicated)[0].equal(first(0)));
    CHECK(whole_parameters(*hybrid)[0].equal(torch::cat({first(0).narrow(0, 0, 2), first(1).narrow(0, 2, 2)})));
    // Two meshes of the same name are independent.
    const ProcessMesh again(group, {2, 2});
    again.axis(0).barrier();
  });
}

TEST_CASE("fully_shard: strategies and hybrid meshes train alike") {
  on_ranks(4, [&](const ProcessGroup& group) {
    const ProcessMesh flat(group), grid(group, {2, 2}, {"replicas", "shards"});
    for (const auto strategy : {ShardingStrategy::kFull, ShardingStrategy::kShardGradients, ShardingStrategy::kNoShard}) {
      for (const ProcessMesh* mesh : {&flat, &grid}) {
        CAPTURE(static_cast<int>(strategy));
        CAPTURE(mesh->axes());
        auto plain = model_of<Composite>(8), model = model_of<Composite>(8);
        FullyShardOptions options;
        options.strategy = strategy;
        fully_shard(*model->u1, *mesh, options);
        fully_shard(*model->u2, *mesh, options);
        fully_shard(model, *mesh, options);
        const bool cut = strategy != ShardingStrategy::kNoShard;
        CHECK(model->parameters()[0].size(0) == (cut ? 8 / mesh->axis(mesh->axes() - 1).size() : 8));
        CHECK(train_both(plain, model, input_of(2, 8)) == 0);
        CHECK(training::memory_use(*model).gathered == 0);
        training::reset_memory_peak(*model);
        const torch::Tensor loss = model(input_of(2, 8)).sum();
        const auto use = training::memory_use(*model);
        const std::int64_t whole = 8 * (8 * 8 + 8) * 4;
        CHECK(use.gathered == (strategy == ShardingStrategy::kShardGradients ? whole : 0));
        loss.backward();
        CHECK(training::memory_use(*model).gathered == 0);
      }
    }
  });
}

TEST_CASE("fully_shard: tied, frozen, unused and ignored parameters") {
  struct TiedImpl : torch::nn::Module {
    TiedImpl() : embedding(12, 6), unit(6), unused(6, 6), frozen(6, 6), apart(6, 6) {
      register_module("embedding", embedding);
      register_module("unit", unit);
      register_module("unused", unused);
      register_module("frozen", frozen);
      register_module("apart", apart);
      output = register_parameter("output", embedding->weight);
      idle = register_parameter("idle", torch::ones({4}));
      frozen->weight.set_requires_grad(false);
    }
    torch::Tensor forward(const torch::Tensor& x) {
      return torch::linear(apart(frozen(unit(embedding(x.to(torch::kLong).remainder(12))))), output);
    }
    torch::nn::Embedding embedding;
    Unit unit;
    torch::nn::Linear unused, frozen, apart;
    torch::Tensor output, idle;
  };
  on_ranks(2, [&](const ProcessGroup& group) {
    const ProcessMesh mesh(group);
    auto plain = model_of<TiedImpl>(), model = model_of<TiedImpl>();
    FullyShardOptions options;
    options.ignored_modules = {model->apart.get()};
    fully_shard(*model->embedding, mesh, options);
    fully_shard(*model->unused, mesh, options);
    fully_shard(model, mesh, options);
    const auto named = model->named_parameters();
    CHECK(named["output"].is_same(named["embedding.weight"]));
    CHECK(named["apart.weight"].size(0) == 6);
    CHECK(train_both(plain, model, seeded(3, [] { return torch::randint(12, {2, 4}); })) == 0);
    CHECK_FALSE(named["unused.weight"].grad().defined());
    CHECK_FALSE(named["idle"].grad().defined());  // others of its unit have one
    CHECK_FALSE(named["frozen.weight"].grad().defined());

    // Parameters can be frozen and unfrozen later, through the shard or through the module's
    // member.
    model->named_parameters()["unit.l1.weight"].set_requires_grad(false);
    model->frozen->weight.set_requires_grad(true);
    for (auto& parameter : model->parameters()) parameter.mutable_grad() = torch::Tensor();
    model(here(torch::ones({2, 3}))).sum().backward();
    CHECK_FALSE(model->named_parameters()["unit.l1.weight"].grad().defined());
    CHECK(model->named_parameters()["frozen.weight"].grad().defined());
    CHECK(model->named_parameters()["frozen.weight"].requires_grad());
  });
}

TEST_CASE("fully_shard: ranks reduce units in one order, whenever gradients come") {
  struct PairImpl : torch::nn::Module {
    PairImpl() : a(4, 4), b(4, 4) {
      register_module("a", a);
      register_module("b", b);
    }
    torch::Tensor forward(const torch::Tensor& x, bool through_b) { return through_b ? b(a(x)) : a(x); }
    torch::nn::Linear a, b;
  };
  struct BlocksImpl : torch::nn::Module {
    BlocksImpl() {
      for (int i = 0; i < 3; ++i) blocks.push_back(register_module("block" + std::to_string(i), std::make_shared<PairImpl>()));
    }
    torch::Tensor forward(torch::Tensor x, bool through_b) {
      for (const auto& block : blocks) x = torch::tanh(block->forward(x, through_b));
      return x;
    }
    std::vector<std::shared_ptr<PairImpl>> blocks;
  };
  FullyShardOptions options;
  SUBCASE("gathering ahead") { options.prefetch = true; }
  SUBCASE("gathering when used") { options.prefetch = false; }
  SUBCASE("parameters that stay gathered") { options.strategy = training::ShardingStrategy::kShardGradients; }
  SUBCASE("whole parameters") { options.strategy = training::ShardingStrategy::kNoShard; }
  on_ranks(2, [&](const ProcessGroup& group) {
    auto through = model_of<BlocksImpl>(), beside = model_of<BlocksImpl>(), model = model_of<BlocksImpl>();
    for (const auto& block : model->blocks) fully_shard(*block, ProcessMesh(group), options);
    fully_shard(model, ProcessMesh(group), options);
    const torch::Tensor input = input_of(3, 4).requires_grad_();
    through(input, true).sum().backward();
    beside(input, false).sum().backward();
    const auto with_b = through->named_parameters(), without_b = beside->named_parameters();
    for (int step = 0; step < 3; ++step) {  // the first step records the order in which units are used
      clear_gradients(*model, true);
      model(input, group.rank() == 0).sum().backward();
      for (const auto& item : model->named_parameters()) {
        torch::Tensor mean = with_b[item.key()].grad() / 2;
        if (without_b[item.key()].grad().defined()) mean = mean + without_b[item.key()].grad() / 2;
        const bool cut = options.strategy != training::ShardingStrategy::kNoShard;
        const torch::Tensor own = cut ? mean.chunk(2)[static_cast<std::size_t>(group.rank())] : mean;
        CHECK_MESSAGE(torch::allclose(item.value().grad(), own), item.key());
      }
    }
  });
}

TEST_CASE("fully_shard: a backward pass that throws leaves nothing behind") {
  struct ThrowingBackward : torch::autograd::Function<ThrowingBackward> {
    static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& x) { return x.clone(); }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, const torch::autograd::variable_list&) {
      throw std::runtime_error("thrown in backward");
    }
  };
  on_ranks(2, [](const ProcessGroup& group) {
    auto plain = model_of<Chain>(std::vector<std::int64_t>{4, 6, 2}), model = model_of<Chain>(std::vector<std::int64_t>{4, 6, 2});
    fully_shard(*model->layers[0], ProcessMesh(group));
    fully_shard(model, ProcessMesh(group));
    const torch::Tensor input = input_of(3, 4);
    plain(input).sum().backward();
    const torch::Tensor other = model->forward(input).sum();  // its backward pass runs after the one that throws
    const torch::Tensor hidden = ThrowingBackward::apply(model->layers[0]->forward(input));
    CHECK_THROWS(model->layers[1]->forward(hidden).sum().backward());
    other.backward();
    for (const auto& item : model->named_parameters()) {
      REQUIRE(item.value().grad().defined());
      CHECK(torch::allclose(training::full_tensor(item.value()), plain->named_parameters()[item.key()]));
      const torch::Tensor& whole = plain->named_parameters()[item.key()].grad();
      CHECK(torch::allclose(item.value().grad(), whole.chunk(2)[static_cast<std::size_t>(group.rank())]));
    }
    CHECK(training::memory_use(*model).gathered == 0);
  });
}

TEST_CASE("fully_shard: gradients accumulate over backward passes and are clipped globally") {
  on_ranks(2, [&](const ProcessGroup& group) {
    for (const bool sync : {true, false}) {
      auto plain = model_of<Composite>(8), model = model_of<Composite>(8);
      fully_shard(*model->u1, ProcessMesh(group));
      fully_shard(model, ProcessMesh(group));
      for (const std::uint64_t seed : {1, 2, 3}) {
        training::set_gradient_sync(*model, sync || seed == 3);
        plain(input_of(2, 8, seed)).sum().backward();
        model(input_of(2, 8, seed)).sum().backward();
        CHECK(model->parameters()[0].grad().defined() == (sync || seed == 3));
      }
      const double expected = torch::nn::utils::clip_grad_norm_(plain->parameters(), 0.5);
      CHECK(training::clip_grad_norm(*model, 0.5) == doctest::Approx(expected).epsilon(1e-6));
      const auto whole = plain->parameters(), shards = model->parameters();
      for (std::size_t i = 0; i < shards.size(); ++i) {
        const torch::Tensor rows = whole[i].grad().chunk(2)[static_cast<std::size_t>(group.rank())];
        CHECK((training::local_tensor(shards[i].grad()) - rows).abs().max().item<double>() <= 1e-7);
        CHECK((training::full_grad(shards[i]) - whole[i].grad()).abs().max().item<double>() <= 1e-7);
      }
      for (const double type : {1.0, 3.0, std::numeric_limits<double>::infinity()}) {
        const double of_plain = torch::nn::utils::clip_grad_norm_(plain->parameters(), 1e9, type);
        CHECK(training::clip_grad_norm(*model, 1e9, type) == doctest::Approx(of_plain).epsilon(1e-6));
      }
      clear_gradients(*model, true);
      CHECK(training::clip_grad_norm(*model, 1) == 0);
      CHECK_FALSE(training::full_grad(shards[0]).defined());
      CHECK(thrown_by([&] { training::clip_grad_norm(*model, 1, 0); }).code == ErrorCode::kInvalidArgument);
    }
  });
}

TEST_CASE("fully_shard: unsynchronised gradients count at the next synchronisation") {
  on_ranks(2, [&](const ProcessGroup& all) {
    for (const bool alone : {false, true}) {
      const ProcessGroup group = alone ? ProcessGroup::single() : all;
      auto plain = model_of<Composite>(8), model = model_of<Composite>(8);
      fully_shard(*model->u1, ProcessMesh(group));
      fully_shard(*model->u2, ProcessMesh(group));
      fully_shard(model, ProcessMesh(group));
      training::set_gradient_sync(*model, false);
      plain->u1(input_of(2, 8, 1)).sum().backward();
      {
        const training::ForwardScope scope(*model);
        model->u1(input_of(2, 8, 1)).sum().backward();
      }
      training::set_gradient_sync(*model, true);
      plain->u2(input_of(2, 8, 2)).sum().backward();
      {
        const training::ForwardScope scope(*model);
        model->u2(input_of(2, 8, 2)).sum().backward();
      }
      const auto expected = plain->u1->parameters(), shards = model->u1->parameters();
      for (std::size_t i = 0; i < shards.size(); ++i)
        CHECK(torch::allclose(training::full_grad(shards[i]), expected[i].grad(), 1e-5, 1e-6));
    }
  });
}

TEST_CASE("fully_shard: each forward call in a scope sees the optimizer's last step") {
  on_ranks(2, [&](const ProcessGroup& group) {
    auto plain = model_of<Composite>(8), model = model_of<Composite>(8);
    fully_shard(*model->u1, ProcessMesh(group));
    fully_shard(*model, ProcessMesh(group));
    torch::optim::SGD plain_optimizer(plain->parameters(), 0.1), optimizer(model->parameters(), 0.1);
    const training::ForwardScope scope(*model);
    for (int step = 0; step < 3; ++step) {
      clear_gradients(*plain, true);
      clear_gradients(*model, true);
      const torch::Tensor expected = plain(input_of(2, 8)).sum(), loss = model->forward(input_of(2, 8)).sum();
      CHECK(loss.item<float>() == doctest::Approx(expected.item<float>()).epsilon(1e-5));
      expected.backward();
      loss.backward();
      plain_optimizer.step();
      optimizer.step();
    }
  });
}

TEST_CASE("fully_shard: gradients whose sum is too large for float16 have their mean") {
  on_ranks(4, [&](const ProcessGroup& group) {
    auto model = model_of<Chain>(std::vector<std::int64_t>{4, 4});
    FullyShardOptions options;
    options.mixed_precision.reduction = torch::kHalf;
    fully_shard(*model, ProcessMesh(group), options);
    (model->layers[0]->bias.sum() * 40000).backward();
    CHECK(training::full_grad(model->parameters()[1]).equal(here(torch::full({4}, 40000.0))));
  });
}

TEST_CASE("fully_shard: floating buffers get the type of the innermost unit's policy") {
  struct BufferedImpl : torch::nn::Module {
    BufferedImpl() : inner(4), apart(4) {
      register_module("inner", inner);
      register_module("apart", apart);
      weight = register_parameter("weight", torch::ones({4}));
      offset = register_buffer("offset", torch::full({4}, 1.001));
    }
    torch::Tensor forward(const torch::Tensor& x) { return apart(inner(x * weight + offset)); }
    torch::nn::BatchNorm1d inner, apart;
    torch::Tensor weight, offset;
  };
  on_ranks(2, [&](const ProcessGroup& group) {
    auto model = model_of<BufferedImpl>();
    FullyShardOptions plain, half;
    half.mixed_precision.buffers = torch::kBFloat16;
    half.ignored_modules = {model->apart.get()};
    fully_shard(*model->inner, ProcessMesh(group), plain);
    fully_shard(model, ProcessMesh(group), half);
    CHECK((model->offset.scalar_type() == torch::kBFloat16));
    CHECK(model->offset[0].item<float>() == 1.0F);  // bfloat16 has 8 bits of precision
    CHECK((model->inner->running_mean.scalar_type() == torch::kFloat));
    CHECK((model->apart->running_mean.scalar_type() == torch::kFloat));
    CHECK((model->inner->num_batches_tracked.scalar_type() == torch::kLong));
    model(input_of(3, 4)).sum().backward();

    auto different = model_of<BufferedImpl>();
    CHECK(thrown_by([&] { fully_shard(different, ProcessMesh(group), group.rank() == 0 ? half : plain); }).code ==
          ErrorCode::kMismatch);
    CHECK((different->offset.scalar_type() == torch::kFloat));
  });
}

TEST_CASE("fully_shard: every call of every method gathers parameters") {
  on_ranks(2, [&](const ProcessGroup& group) {
    auto plain = model_of<Composite>(8), model = model_of<Composite>(8);
    fully_shard(*model->u1, ProcessMesh(group));
    fully_shard(*model, ProcessMesh(group));
    const torch::Tensor input = input_of(2, 8);
    {
      const torch::NoGradGuard no_grad;
      CHECK(model->forward(input).equal(plain(input)));
      CHECK(model->u1->forward(input).equal(plain->u1(input)));
      CHECK(training::memory_use(*model).gathered == 0);
      const auto before = training::memory_use(*model).gathers;
      const training::ForwardScope scope(*model);
      model->forward(input);
      CHECK(training::memory_use(*model).gathers == before + 2);
      CHECK(training::memory_use(*model).gathered > 0);
    }
    CHECK(training::memory_use(*model).gathered == 0);
    // Values that are loaded between two evaluations take effect, even if the write does not change
    // LibTorch's version counters.
    const torch::NoGradGuard no_grad;
    for (auto& shard : model->parameters())
      torch::from_blob(shard.data_ptr(), shard.sizes(), torch::dtype(shard.dtype()).device(shard.device())).zero_();
    CHECK(model->forward(input).count_nonzero().item<int>() == 0);
  });
}

TEST_CASE("fully_shard: recurrent, convolutional and normalising layers train unchanged") {
  struct ManyImpl : torch::nn::Module {
    ManyImpl()
        : conv(torch::nn::Conv1dOptions(3, 4, 3).padding(1)),
          gru(torch::nn::GRUOptions(4, 6).batch_first(true).num_layers(2)),
          norm(torch::nn::LayerNormOptions({6})),
          attention(6, 2),
          head(6, 2) {
      register_module("conv", conv);
      register_module("gru", gru);
      register_module("norm", norm);
      register_module("attention", attention);
      register_module("head", head);
    }
    torch::Tensor forward(const torch::Tensor& x) {
      const torch::Tensor y = norm(std::get<0>(gru(conv(x).transpose(1, 2)))).transpose(0, 1);
      return head(std::get<0>(attention(y, y, y)));
    }
    torch::nn::Conv1d conv;
    torch::nn::GRU gru;
    torch::nn::LayerNorm norm;
    torch::nn::MultiheadAttention attention;
    torch::nn::Linear head;
  };
  on_ranks(2, [&](const ProcessGroup& group) {
    auto plain = model_of<ManyImpl>(), model = model_of<ManyImpl>();
    FullyShardOptions options;
    options.wrap_policy = [](const torch::nn::Module&, std::int64_t) { return true; };
    fully_shard(model, ProcessMesh(group), options);
    CHECK(train_both(plain, model, seeded(1, [] { return torch::randn({2, 3, 5}); }), 3) == 0);
  });
}
