#include <cairn/tests/support/torch.hpp>

#include <atomic>

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <cairn/state/tensor_types.hpp>
#include <cairn/tests/support/thrown.hpp>
#include <cairn/tests/training/sharded_models.hpp>
#include <cairn/training/checkpoint_activations.hpp>
#include <cairn/training/parallelize.hpp>
#include <cairn/training/replicate.hpp>
#include <cairn/training/state_dicts.hpp>
#include <cairn/training/torch_compat.hpp>

using namespace cairn;
using namespace cairn::testing;
using training::ColwiseParallel;
using training::Hooked;
using training::parallelize;
using training::ParallelPlan;
using training::ProcessGroup;
using training::ProcessMesh;
using training::RowwiseParallel;

namespace {

// An embedding, a hidden layer up and down again, and an output layer.
struct PerceptronImpl : torch::nn::Module {
  PerceptronImpl(std::int64_t rows, std::int64_t width, std::int64_t hidden, bool biased = true)
      : table(rows, width),
        up(torch::nn::LinearOptions(width, hidden).bias(biased)),
        down(torch::nn::LinearOptions(hidden, width).bias(biased)),
        scores(torch::nn::LinearOptions(width, rows).bias(biased)) {
    register_module("table", table);
    register_module("up", up);
    register_module("down", down);
    register_module("scores", scores);
  }
  torch::Tensor forward(const torch::Tensor& indices) { return scores(down(torch::relu(up(table(indices))))); }
  torch::nn::Embedding table;
  Hooked<torch::nn::Linear> up, down;
  torch::nn::Linear scores;
};
TORCH_MODULE(Perceptron);

const ParallelPlan kPlan = {{"table", RowwiseParallel{}},
                            {"up", ColwiseParallel{}},
                            {"down", RowwiseParallel{}},
                            {"scores", ColwiseParallel{/*gather_output=*/true}}};

Hooked<Perceptron> perceptron(std::int64_t rows, std::int64_t width, std::int64_t hidden, bool biased = true) {
  auto model = seeded(0, [&] { return Hooked<Perceptron>(rows, width, hidden, biased); });
  model->to(torch::kDouble);
  return model;
}

void tie(Hooked<Perceptron>& model) {
  model->scores->weight = model->table->weight;
  training::registered_parameters(*model->scores)["weight"] = model->table->weight;
}

torch::Tensor indices_of(const std::vector<std::int64_t>& sizes, std::int64_t rows, std::uint64_t seed = 1) {
  return seeded(seed, [&] { return torch::randint(rows, sizes); });
}

// Trains both models on the same input. Returns the largest difference of any loss and of the final
// parameters.
template <class Plain, class Parallel>
double train_alike(Plain& plain, Parallel& model, torch::optim::Optimizer& plain_optimizer, torch::optim::Optimizer& optimizer,
                   const torch::Tensor& input, int steps = 5) {
  double largest = 0;
  for (int step = 0; step < steps; ++step) {
    plain_optimizer.zero_grad();
    optimizer.zero_grad();
    const torch::Tensor expected = plain(input).pow(2).sum(), loss = model(input).pow(2).sum();
    largest = std::max(largest, std::abs(expected.template item<double>() - loss.template item<double>()));
    expected.backward();
    loss.backward();
    plain_optimizer.step();
    optimizer.step();
  }
  return std::max(largest, largest_difference(whole_parameters(*plain), whole_parameters(*model)));
}

// Counts the Gloo collectives that this thread starts.
class CountedCollectives {
 public:
  CountedCollectives()
      : guard_(c10::DebugInfoKind::TEST_INFO, counter_),
        handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(&begun).scopes({at::RecordScope::USER_SCOPE}))) {}
  ~CountedCollectives() { at::removeCallback(handle_); }
  CountedCollectives(const CountedCollectives&) = delete;
  CountedCollectives& operator=(const CountedCollectives&) = delete;
  int count() const { return counter_->count; }

 private:
  struct Counter : c10::DebugInfoBase {
    std::atomic<int> count{0};
  };
  // Runs on a Gloo thread, which inherits the debug information of the thread that started the
  // collective.
  static std::unique_ptr<at::ObserverContext> begun(const at::RecordFunction& function) {
    auto* const counter = static_cast<Counter*>(c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::TEST_INFO));
    if (counter != nullptr && std::string(function.name()).rfind("gloo:", 0) == 0) ++counter->count;
    return nullptr;
  }
  std::shared_ptr<Counter> counter_ = std::make_shared<Counter>();
  c10::DebugInfoGuard guard_;
  at::CallbackHandle handle_;
};

}  // namespace

TEST_CASE("parallelize: a plan with faults is refused with all of them, without effect") {
  on_ranks(2, [](const ProcessGroup& group) {
    const ProcessMesh mesh(group);
    auto model = perceptron(6, 4, 8);
    const torch::Tensor weight = model->up->weight;
    const Thrown thrown = thrown_by([&] {
      parallelize(*model, mesh,
                  {{"up", ColwiseParallel{}}, {"u*", RowwiseParallel{}}, {"none.*", ColwiseParallel{}}, {"", RowwiseParallel{}}});
    });
    CHECK(thrown == Saying{ErrorCode::kInvalidArgument, "\"up\" is named by \"up\" and by \"u*\""});
    CHECK(thrown.says("\"none.*\" names no submodule"));
    CHECK(thrown.says("Linear and Embedding can be cut"));
    CHECK(weight.is_same(model->up->parameters()[0]));
    CHECK(weight.storage().data());
    CHECK(thrown_by([&] {
            parallelize(*model, ProcessMesh(group, {1, 2}, {}, "grid"), kPlan);
          }).code == ErrorCode::kInvalidArgument);

    auto different = perceptron(6, 4, 8 + group.rank());
    CHECK(thrown_by([&] { parallelize(*different, mesh, kPlan); }) ==
          Saying{ErrorCode::kMismatch, "rank 1 cut something else than rank 0"});

    parallelize(*model, mesh, kPlan);
    CHECK(thrown_by([&] { parallelize(*model, mesh, kPlan); }).says("\"up.weight\" is parallel already"));
    auto sharded = perceptron(6, 4, 8);
    training::fully_shard(*sharded, mesh);
    CHECK(thrown_by([&] { parallelize(*sharded, mesh, kPlan); }).says("parallelize first"));

    auto tied = perceptron(8, 4, 8);
    tie(tied);
    CHECK(thrown_by([&] { parallelize(*tied, mesh, {{"table", RowwiseParallel{}}}); }).says("but the plan does not name it"));
    CHECK(thrown_by([&] {
            parallelize(*tied, mesh, {{"table", ColwiseParallel{}}, {"scores", ColwiseParallel{}}});
          }).says("is cut in another way"));
    for (const auto& options : {torch::nn::EmbeddingOptions(4, 4).max_norm(1), torch::nn::EmbeddingOptions(4, 4).sparse(true),
                                torch::nn::EmbeddingOptions(4, 4).scale_grad_by_freq(true)}) {
      torch::nn::Embedding odd(options);
      CHECK(thrown_by([&] { parallelize(*odd, mesh, {{"", RowwiseParallel{}}}); }).code == ErrorCode::kInvalidArgument);
    }
  });
}

TEST_CASE("parallelize: a pattern of one part matches every child, and not the module itself") {
  on_ranks(2, [](const ProcessGroup& group) {
    torch::nn::Sequential model(torch::nn::Linear(4, 6), torch::nn::Linear(6, 4));
    model->to(rank_device());
    parallelize(*model, ProcessMesh(group), {{"*", ColwiseParallel{/*gather_output=*/true}}});
    CHECK(model->named_parameters()["0.weight"].size(0) == 3);
    CHECK(model->named_parameters()["1.weight"].size(0) == 2);
    CHECK(model->forward(torch::zeros({1, 4}, rank_device())).size(1) == 4);
  });
}

TEST_CASE("parallelize: ranks may hold different numbers of fully sharded rows") {
  on_ranks(2, [](const ProcessGroup& group) {
    auto model = perceptron(5, 4, 8);
    training::fully_shard(*model->table, ProcessMesh(group));
    parallelize(*model, ProcessMesh(group), {{"up", ColwiseParallel{}}, {"down", RowwiseParallel{}}});
    CHECK(model(indices_of({3}, 5)).size(1) == 5);
  });
}

TEST_CASE("parallelize: under autocast layers give the type that plain ones give") {
  on_ranks(2, [](const ProcessGroup& group) {
    torch::nn::Linear columns(4, 8), rows(8, 4);
    columns->to(rank_device());
    rows->to(rank_device());
    parallelize(*columns, ProcessMesh(group), {{"", ColwiseParallel{}}});
    parallelize(*rows, ProcessMesh(group), {{"", RowwiseParallel{}}});
    const auto device = rank_device().type();
    const training::Autocast before = training::autocast_on(device);
    training::set_autocast_on(device, {true, torch::kBFloat16});
    for (const std::vector<std::int64_t>& size : {std::vector<std::int64_t>{3, 4}, std::vector<std::int64_t>{2, 3, 4}}) {
      const torch::Tensor part = columns(here(torch::ones(size)));
      CHECK((part.scalar_type() == torch::kBFloat16));
      CHECK((rows(part).scalar_type() == torch::kBFloat16));
    }
    at::autocast::clear_cache();
    training::set_autocast_on(device, before);
  });
}

TEST_CASE("parallelize: what a cut parameter cannot do is an error that says what to do") {
  on_ranks(2, [](const ProcessGroup& group) {
    auto model = perceptron(6, 4, 8);
    torch::optim::SGD early(model->parameters(), 0.1);
    parallelize(*model, ProcessMesh(group), kPlan);
    const auto unsupported = [](const auto& call) {
      const Thrown thrown = thrown_by(call);
      CHECK(thrown == Saying{ErrorCode::kUnsupported, "up.weight"});
    };
    unsupported([&] { model->up->weight.pow(2).sum(); });
    unsupported([&] { model->up->weight.detach().mul_(2); });
    unsupported([&] { torch::stack({model->up->weight, model->up->weight}); });
    unsupported([&] { torch::matmul(torch::ones({4, 4}, torch::kDouble), model->up->weight.narrow(0, 0, 4)); });
    unsupported([&] { torch::matmul(model->up->weight, torch::ones({4, 2}, torch::kDouble)); });
    CHECK(model->up->weight.storage().data_ptr().get() == nullptr);

    const torch::Tensor input = indices_of({3, 5}, 6);
    model(input).sum().backward();
    CHECK(thrown_by([&] { early.step(); }) == Saying{ErrorCode::kPrecondition, "make the optimizer after parallelize"});
    CHECK(thrown_by([&] {
            model->down->forward(torch::ones({2, 8}, torch::kDouble));
          }) == Saying{ErrorCode::kMismatch, "takes 4 features (this rank's part)"});
    CHECK(thrown_by([&] { model->table->forward(torch::full({1}, 6, torch::kLong)); }).says("out of range for the 6 rows"));
    CHECK(thrown_by([&] { training::full_tensor(model->up->weight); }).code == ErrorCode::kInvalidArgument);
  });
}

TEST_CASE("parallelize: trains as the plain model does, and each rank holds its part only") {
  struct Sizes {
    std::int64_t rows, width, hidden;
  };
  for (const int ranks : {1, 2, 3, 4}) {
    for (const Sizes& sizes : {Sizes{12, 6, 12}, Sizes{7, 5, 9}, Sizes{2, 3, 5}}) {
      for (const bool biased : {true, false}) {
        on_ranks(ranks, [&](const ProcessGroup& group) {
          CAPTURE(ranks);
          CAPTURE(sizes.rows);
          auto plain = perceptron(sizes.rows, sizes.width, sizes.hidden, biased);
          auto model = perceptron(sizes.rows, sizes.width, sizes.hidden, biased);
          parallelize(*model, ProcessMesh(group), kPlan);
          CHECK((model->named_parameters().keys() == plain->named_parameters().keys()));

          // Expected bytes: the table and the scores are cut by rows, the hidden layers by hidden
          // features. Only the bias of `down` is whole.
          const auto share = [&](std::int64_t length) {
            const std::int64_t chunk = (length + ranks - 1) / ranks;
            return std::max<std::int64_t>(0, std::min(chunk, length - chunk * group.rank()));
          };
          std::int64_t held = 0;
          for (const auto& parameter : model->parameters()) held += static_cast<std::int64_t>(parameter.storage().nbytes());
          const std::int64_t biases = biased ? share(sizes.hidden) + sizes.width + share(sizes.rows) : 0;
          CHECK(held == 8 * (2 * share(sizes.rows) * sizes.width + 2 * share(sizes.hidden) * sizes.width + biases));
          for (const auto& handle : {model->table->weight, model->up->weight, model->down->weight, model->scores->weight})
            CHECK(handle.storage().data_ptr().get() == nullptr);

          torch::optim::AdamW plain_optimizer(plain->parameters(), 0.01), optimizer(model->parameters(), 0.01);
          // Partial sums are added in another order, so the last bits of a double differ. Adam
          // carries the difference on.
          for (const auto& input : {indices_of({6}, sizes.rows), indices_of({2, 3}, sizes.rows)})
            CHECK(train_alike(plain, model, plain_optimizer, optimizer, input) <= 1e-10);
        });
      }
    }
  }
}

TEST_CASE("parallelize: a column-wise and row-wise pair exchanges one message each way") {
  on_ranks(2, [](const ProcessGroup& group) {
    auto model = perceptron(6, 4, 8);
    parallelize(*model, ProcessMesh(group), {{"up", ColwiseParallel{}}, {"down", RowwiseParallel{}}});
    const torch::Tensor input = here(torch::ones({3, 4}, torch::kDouble)).requires_grad_();
    const CountedCollectives counted;
    const torch::Tensor hidden = torch::relu(model->up(input));
    if (ranks_use_cuda()) return;  // NCCL collectives are not counted
    CHECK(counted.count() == 0);
    CHECK(hidden.size(1) == 4);
    const torch::Tensor output = model->down(hidden);
    CHECK(counted.count() == 1);
    output.sum().backward();
    CHECK(counted.count() == 2);
  });
}

TEST_CASE("parallelize: embeddings and whole inputs and outputs are supported") {
  on_ranks(3, [](const ProcessGroup& group) {
    auto plain = perceptron(7, 5, 9);
    auto model = seeded(group.rank() == 0 ? 0 : 77, [] { return Hooked<Perceptron>(7, 5, 9); });
    model->to(torch::kDouble);
    parallelize(*model, ProcessMesh(group),
                {{"table", ColwiseParallel{true}},
                 {"up", ColwiseParallel{true}},
                 {"down", RowwiseParallel{/*input_is_parallel=*/false}},
                 {"s*", ColwiseParallel{true}}});
    CHECK(model->down->named_parameters()["bias"].equal(plain->down->bias));  // not sharded
    torch::optim::SGD plain_optimizer(plain->parameters(), 0.01), optimizer(model->parameters(), 0.01);
    for (const auto& input : {indices_of({6}, 7), indices_of({2, 3}, 7)})
      CHECK(train_alike(plain, model, plain_optimizer, optimizer, input) <= 1e-10);
  });
}

TEST_CASE("parallelize: tied, frozen and padding parameters train as in the plain model") {
  on_ranks(2, [](const ProcessGroup& group) {
    const auto made = [] {
      auto model = perceptron(7, 4, 6);
      model->table->options.padding_idx(5);
      tie(model);
      model->up->bias.set_requires_grad(false);
      return model;
    };
    auto plain = made(), model = made();
    parallelize(*model, ProcessMesh(group), kPlan);
    CHECK(model->named_parameters()["scores.weight"].is_same(model->named_parameters()["table.weight"]));
    torch::optim::SGD plain_optimizer(plain->parameters(), 1e-4), optimizer(model->parameters(), 1e-4);
    const torch::Tensor input = indices_of({4, 3}, 7);
    CHECK(train_alike(plain, model, plain_optimizer, optimizer, input) <= 1e-10);
    CHECK_FALSE(model->named_parameters()["up.bias"].grad().defined());
    std::vector<torch::Tensor> once = plain->parameters();  // a tied parameter counts once
    once.erase(std::find_if(once.begin(), once.end(), [&](const auto& each) { return each.is_same(plain->scores->weight); }));
    const double expected = torch::nn::utils::clip_grad_norm_(once, 0.5);
    CHECK(training::clip_grad_norm(*model, 0.5) == doctest::Approx(expected).epsilon(1e-12));
    plain_optimizer.step();
    optimizer.step();
    CHECK(largest_difference(whole_parameters(*plain), whole_parameters(*model)) <= 1e-10);

    plain->up->weight.set_requires_grad(false);
    model->up->weight.set_requires_grad(false);  // through the layer's own member
    CHECK(train_alike(plain, model, plain_optimizer, optimizer, input, 1) <= 1e-10);
    CHECK_FALSE(model->named_parameters()["up.weight"].requires_grad());
    const torch::NoGradGuard no_grad;
    CHECK((plain(input) - model(input)).abs().max().item<double>() <= 1e-12);
  });
}

TEST_CASE("parallelize: composes with fully_shard, replicate and activation checkpointing") {
  enum class Around { kSharded, kReplicated, kCheckpointed };
  for (const Around around : {Around::kSharded, Around::kReplicated, Around::kCheckpointed}) {
    on_ranks(4, [&](const ProcessGroup& group) {
      CAPTURE(static_cast<int>(around));
      const ProcessMesh grid(group, {2, 2}, {"dp", "tp"});
      auto plain = perceptron(7, 5, 9), model = perceptron(7, 5, 9);
      parallelize(*model, grid.along("tp"), kPlan);
      std::int64_t held = 0;
      for (const auto& parameter : model->parameters()) held += parameter.numel();
      if (around == Around::kReplicated) {
        training::replicate(model, grid.along("dp").world());
      } else {
        training::fully_shard(model->up, grid.along("dp"));
        training::fully_shard(model, grid.along("dp"));
      }
      if (around == Around::kCheckpointed) {
        training::checkpoint_activations(model->up, of_own_generator());
        training::checkpoint_activations(model->down, of_own_generator());
      }
      std::int64_t left = 0;
      for (const auto& parameter : model->parameters()) left += parameter.numel();
      CHECK((around == Around::kReplicated ? left == held : left < held));

      // Each row of the grid has its own input, and gradients are the mean over the rows.
      const torch::Tensor both = indices_of({8}, 7);
      const torch::Tensor own = both.narrow(0, 4 * grid.axis(0).rank(), 4);
      torch::optim::AdamW plain_optimizer(plain->parameters(), 0.01), optimizer(model->parameters(), 0.01);
      for (int step = 0; step < 4; ++step) {
        plain_optimizer.zero_grad();
        optimizer.zero_grad();
        plain(both).pow(2).mean().backward();
        model(own).pow(2).mean().backward();
        const double expected = torch::nn::utils::clip_grad_norm_(plain->parameters(), 0.1);
        CHECK(training::clip_grad_norm(*model, 0.1) == doctest::Approx(expected).epsilon(1e-10));
        plain_optimizer.step();
        optimizer.step();
      }
      CHECK(largest_difference(whole_parameters(*plain), whole_parameters(*model)) <= 1e-10);
      CHECK(training::memory_use(*model).gathered == 0);

      // State dicts have the plain model's names and sizes, whole or sharded, and load into a model
      // with another layout.
      training::StateDictOptions whole;
      whole.full_state_dict = true;
      const auto [of_plain, of_plain_optimizer] = training::get_state_dict(*plain, plain_optimizer);
      const auto [of_model, of_optimizer] = training::get_state_dict(*model, optimizer, whole);
      const Dict parts = training::get_model_state_dict(*model);
      REQUIRE(of_model.size() == of_plain.size());
      for (const auto& [name, value] : of_plain) {
        CHECK((of_model.at(name).tensor() - value.tensor()).abs().max().template item<double>() <= 1e-10);
        if (name == "down.bias" && around == Around::kReplicated) continue;
        REQUIRE(parts.at(name).is_sharded());
        CHECK((array_of(parts.at(name).sharded().size()) == value.tensor().sizes()));
        CHECK(parts.at(name).sharded().all_chunks().has_value());
        const LocalShard& shard = parts.at(name).sharded().local_shards().front();
        CHECK(shard.tensor.equal(part_of(of_model.at(name).tensor(), shard.offsets, extents_of(shard.tensor.sizes()))));
      }
      auto other = perceptron(7, 5, 9);
      parallelize(*other, ProcessMesh(group), {{"table", ColwiseParallel{true}}, {"scores", ColwiseParallel{true}}});
      torch::optim::AdamW other_optimizer(other->parameters(), 0.5);
      training::set_state_dict(*other, other_optimizer, of_model, of_optimizer, whole);
      CHECK(largest_difference(whole_parameters(*model), whole_parameters(*other)) == 0);
      training::StateDictOptions sent = whole;
      sent.broadcast_from_rank0 = true;
      Dict zeros;
      if (group.rank() == 0) {
        for (const auto& [name, value] : of_model) zeros.insert(name, torch::zeros_like(value.tensor()));
      }
      training::set_model_state_dict(*model, zeros, sent);
      for (const auto& parameter : whole_parameters(*model)) CHECK(parameter.count_nonzero().item<std::int64_t>() == 0);
    });
  }
}
