// Trains, saves, loads into a fresh optimizer and continues. The losses must equal those of
// uninterrupted training.
#include <algorithm>
#include <set>

#include <cairn/base/error.hpp>
#include <cairn/state/adapters.hpp>
#include <cairn/state/libtorch_compat.hpp>
#include <cairn/tests/state/memory_checkpoint.hpp>
#include <cairn/tests/support/resized_storage.hpp>

using namespace cairn;
using namespace cairn::test;
namespace optim = torch::optim;

namespace {

struct Trainer {
  using Make = std::function<std::shared_ptr<optim::Optimizer>(std::vector<torch::Tensor>)>;

  explicit Trainer(const Make& make) {
    torch::manual_seed(7);
    net = torch::nn::Sequential(torch::nn::Linear(4, 8), torch::nn::Tanh(), torch::nn::Linear(8, 2));
    optimizer = make(net->parameters());
  }

  double step(int number) {
    torch::manual_seed(static_cast<std::uint64_t>(1000 + number));
    const torch::Tensor input = torch::randn({16, 4});
    optimizer->zero_grad();
    const torch::Tensor loss = (net->forward(input) - input.slice(1, 0, 2)).pow(2).mean();
    loss.backward();
    optimizer->step();
    return loss.item<double>();
  }

  StateDict state(bool named) {
    return {{"model", module_state_dict(*net)}, {"optim", optimizer_state_dict(*optimizer, named ? net.ptr().get() : nullptr)}};
  }

  void take_over(const StateDict& state, bool named) {
    load_module_state_dict(*net, state.at("model").dict());
    load_optimizer_state_dict(*optimizer, state.at("optim").dict(), named ? net.ptr().get() : nullptr);
  }

  torch::nn::Sequential net{nullptr};
  std::shared_ptr<optim::Optimizer> optimizer;
};

template <class Optimizer, class Options>
Trainer::Make maker(Options options) {
  return [options](std::vector<torch::Tensor> parameters) { return std::make_shared<Optimizer>(std::move(parameters), options); };
}

std::vector<std::pair<std::string, Trainer::Make>> makers() {
  return {{"Adam", maker<optim::Adam>(optim::AdamOptions(0.01).betas({0.8, 0.95}).weight_decay(0.1))},
          {"Adam with amsgrad", maker<optim::Adam>(optim::AdamOptions(0.01).amsgrad(true))},
          {"AdamW", maker<optim::AdamW>(optim::AdamWOptions(0.01))},
          {"AdamW with amsgrad", maker<optim::AdamW>(optim::AdamWOptions(0.01).amsgrad(true))},
          {"SGD", maker<optim::SGD>(optim::SGDOptions(0.05))},
          {"SGD with momentum", maker<optim::SGD>(optim::SGDOptions(0.05).momentum(0.9).nesterov(true))},
          {"SGD with dampening", maker<optim::SGD>(optim::SGDOptions(0.05).momentum(0.9).dampening(0.5))},
          {"RMSprop", maker<optim::RMSprop>(optim::RMSpropOptions(0.01))},
          {"RMSprop, centered, with momentum", maker<optim::RMSprop>(optim::RMSpropOptions(0.01).centered(true).momentum(0.5))},
          {"Adagrad", maker<optim::Adagrad>(optim::AdagradOptions(0.05).lr_decay(0.01).initial_accumulator_value(0.1))}};
}

std::vector<double> losses(Trainer& trainer, int from, int to) {
  std::vector<double> result;
  for (int number = from; number < to; ++number) result.push_back(trainer.step(number));
  return result;
}

Dict adam_state(Trainer& trainer) { return optimizer_state_dict(*trainer.optimizer, trainer.net.ptr().get()); }

}  // namespace

TEST_CASE("optimizers of unknown kinds and of other modules are refused") {
  Trainer trainer(makers()[0].second);
  optim::LBFGS lbfgs(trainer.net->parameters());
  CHECK(thrown_by([&] { optimizer_state_dict(lbfgs); }) == Saying{ErrorCode::kUnsupported, "LBFGS"});
  torch::nn::Linear other(1, 1);
  CHECK(code_of([&] { optimizer_state_dict(*trainer.optimizer, other.ptr().get()); }) == ErrorCode::kMismatch);
  CHECK(code_of([] { stateful(std::shared_ptr<optim::Optimizer>()); }) == ErrorCode::kInvalidArgument);
}

TEST_CASE("all that does not fit an optimizer is told at once, and nothing was changed") {
  Trainer trainer(maker<optim::Adam>(optim::AdamOptions(0.01).amsgrad(true)));
  trainer.step(0);
  Dict dict = adam_state(trainer);
  dict["state"]["0.weight"].dict().erase("max_exp_avg_sq");
  dict["state"]["0.bias"]["exp_avg"] = torch::zeros(3);
  dict["state"]["2.weight"]["step"] = "three";
  dict["state"]["2.bias"]["mu_product"] = 1.0;
  dict["state"]["9.weight"] = Dict{};
  dict["param_groups"].list()[0]["lr"] = "fast";
  dict["param_groups"].list()[0]["params"] = List{"0.weight"};
  dict["param_groups"].list()[0]["maximize"] = true;
  std::string text;
  CHECK(code_of([&] { load_optimizer_state_dict(*trainer.optimizer, dict, trainer.net.ptr().get()); }, &text) ==
        ErrorCode::kMismatch);
  CHECK(has(text, R"(state["0.weight"]["max_exp_avg_sq"] is missing)"));
  CHECK(has(text, R"(state["0.bias"]["exp_avg"] is a tensor of size [3], the parameter a tensor of size [8])"));
  CHECK(has(text, R"(state["2.weight"]["step"] is a text)"));
  CHECK(has(text, R"(state["2.bias"]["mu_product"])"));
  CHECK(has(text, R"(state["9.weight"])"));
  CHECK(has(text, R"(param_groups[0]["lr"] is a text)"));
  CHECK(has(text, "names other parameters"));
  CHECK(has(text, "maximizes"));
  CHECK(code_of([&] { load_optimizer_state_dict(*trainer.optimizer, {{"state", Dict{}}}); }) == ErrorCode::kMismatch);
  CHECK(code_of([&] { load_optimizer_state_dict(*trainer.optimizer, {{"param_groups", List{}}}); }) == ErrorCode::kMismatch);
}

TEST_CASE("optimizer state whose storage was freed is refused, given or held") {
  Trainer trainer(maker<optim::Adam>(optim::AdamOptions(0.01)));
  trainer.step(0);
  Dict dict = adam_state(trainer);
  dict["state"]["0.weight"]["step"] = cairn::testing::with_storage_of(torch::ones({}), 0);
  dict["state"]["0.bias"]["exp_avg"] = cairn::testing::with_storage_of(torch::ones({8}), 0);
  cairn::testing::with_storage_of(dict["state"]["2.bias"]["exp_avg"].tensor(), 0);
  dict["state"]["2.bias"]["exp_avg"] = torch::ones({2});
  std::string text;
  CHECK(code_of([&] { load_optimizer_state_dict(*trainer.optimizer, dict, trainer.net.ptr().get()); }, &text) ==
        ErrorCode::kMismatch);
  CHECK(has(text, R"(state["0.weight"]["step"] is a tensor, not a whole number)"));
  CHECK(has(text, R"(state["0.bias"]["exp_avg"] is a tensor of size [8], which has a storage of 0 bytes)"));
  CHECK(has(text, R"(the optimizer's state["2.bias"]["exp_avg"] has a storage of 0 bytes)"));
}

TEST_CASE("training goes on after loading as if it had not been interrupted") {
  for (const auto& [name, make] : makers()) {
    for (const bool named : {true, false}) {
      for (const int saved_after : {0, 3}) {
        const auto& shown = name;
        CAPTURE(shown);
        CAPTURE(named);
        CAPTURE(saved_after);
        Trainer straight(make);
        const std::vector<double> expected = losses(straight, 0, 8);

        Trainer first(make);
        losses(first, 0, saved_after);
        const MemoryCheckpoint checkpoint = save({first.state(named)});
        // Saving does not change the training.
        const std::vector<double> tail(expected.begin() + saved_after, expected.end());
        CHECK(losses(first, saved_after, 8) == tail);

        Trainer second(make);
        for (auto& parameter : second.net->parameters()) parameter.data().add_(1);
        StateDict state = second.state(named);
        load(checkpoint, state);
        second.take_over(state, named);
        CHECK(losses(second, saved_after, 8) == tail);

        // Loads into an optimizer that already has other state.
        Trainer third(make);
        losses(third, 20, 25);
        state = third.state(named);
        load(checkpoint, state);
        third.take_over(state, named);
        CHECK(losses(third, saved_after, 8) == tail);
      }
    }
  }
}

TEST_CASE("momentum without buffers is refused, unless the optimizer has momentum") {
  Trainer momentum(makers()[5].second), plain(makers()[4].second);
  momentum.step(0);
  Dict dict = adam_state(momentum);
  Dict without = dict;
  without.erase("state");
  CHECK(thrown_by([&] { load_optimizer_state_dict(*plain.optimizer, without, plain.net.ptr().get()); }) ==
        Saying{ErrorCode::kMismatch, "param_groups[0] turns momentum on"});
  CHECK(adam_state(plain).at("param_groups").list()[0]["momentum"].to_double() == 0);
  load_optimizer_state_dict(*plain.optimizer, dict, plain.net.ptr().get());
  CHECK(same(adam_state(plain).at("state")["0.weight"]["momentum_buffer"].tensor(),
             dict["state"]["0.weight"]["momentum_buffer"].tensor()));
  load_optimizer_state_dict(*momentum.optimizer, without, momentum.net.ptr().get());
  CHECK_FALSE(adam_state(momentum).at("state")["0.weight"]["momentum_buffer"].tensor().any().item<bool>());
}

TEST_CASE("optimizer state exists before the first step, except for frozen parameters") {
  Trainer trainer(makers()[0].second);
  trainer.net->parameters()[0].set_requires_grad(false);
  const Dict dict = adam_state(trainer);
  CHECK_FALSE(dict.at("state").dict().contains("0.weight"));
  CHECK(dict.at("state")["0.bias"]["step"].to_int() == 0);
  CHECK(dict.at("state")["0.bias"]["exp_avg"].tensor().eq(0).all().item<bool>());
}

TEST_CASE("a parameter without stored state starts afresh") {
  Trainer trainer(makers()[0].second);
  trainer.step(0);
  Dict dict = adam_state(trainer);
  dict["state"].dict().erase("0.weight");
  load_optimizer_state_dict(*trainer.optimizer, dict, trainer.net.ptr().get());
  CHECK(adam_state(trainer).at("state")["0.weight"]["step"].to_int() == 0);
  CHECK(adam_state(trainer).at("state")["0.bias"]["step"].to_int() == 1);
}

TEST_CASE("a state dict as PyTorch keeps it is taken over") {
  Trainer trainer(makers()[0].second);
  Dict dict = adam_state(trainer);
  for (auto& [name, entry] : dict["state"].dict()) {
    entry["step"] = torch::tensor(5.0f);
    entry["exp_avg"] = torch::full_like(entry["exp_avg"].tensor(), 0.5);
  }
  Dict& group = dict["param_groups"].list()[0].dict();
  group["lr"] = torch::tensor(0.125f);
  group["betas"] = List{0.5, 0.75};
  group["maximize"] = false;
  group["foreach"] = Value();
  group["initial_lr"] = 0.3;
  load_optimizer_state_dict(*trainer.optimizer, dict, trainer.net.ptr().get());
  Dict after = adam_state(trainer);
  CHECK(after["state"]["2.bias"]["step"].to_int() == 5);
  CHECK(after["state"]["2.bias"]["exp_avg"].tensor().eq(0.5).all().item<bool>());
  CHECK(after["param_groups"].list()[0]["lr"].to_double() == 0.125);

  Trainer sgd(maker<optim::SGD>(optim::SGDOptions(0.1).momentum(0.9)));
  sgd.step(0);
  Dict momentum = adam_state(sgd);
  momentum["state"]["0.weight"]["momentum_buffer"] = Value();
  load_optimizer_state_dict(*sgd.optimizer, momentum, sgd.net.ptr().get());
  CHECK(adam_state(sgd).at("state")["0.weight"]["momentum_buffer"].tensor().eq(0).all().item<bool>());
  dict["param_groups"].list()[0]["decoupled_weight_decay"] = true;
  CHECK(code_of([&] { load_optimizer_state_dict(*trainer.optimizer, dict, trainer.net.ptr().get()); }) == ErrorCode::kMismatch);
}

TEST_CASE("parameter groups have all of PyTorch's options, even those that LibTorch lacks") {
  const std::vector<std::pair<std::string, std::set<std::string>>> kinds{
      {"Adam",
       {"lr", "betas", "eps", "weight_decay", "amsgrad", "maximize", "foreach", "capturable", "differentiable", "fused",
        "decoupled_weight_decay"}},
      {"AdamW",
       {"lr", "betas", "eps", "weight_decay", "amsgrad", "maximize", "foreach", "capturable", "differentiable", "fused",
        "decoupled_weight_decay"}},
      {"SGD",
       {"lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize", "foreach", "differentiable", "fused"}},
      {"RMSprop",
       {"lr", "momentum", "alpha", "eps", "centered", "weight_decay", "capturable", "foreach", "maximize", "differentiable"}},
      {"Adagrad",
       {"lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps", "maximize", "foreach", "differentiable", "fused"}}};
  const auto all = makers();
  for (const auto& [kind, expected] : kinds) {
    const auto& shown = kind;
    CAPTURE(shown);
    const auto made = std::find_if(all.begin(), all.end(), [name = kind](const auto& one) { return one.first == name; });
    REQUIRE(made != all.end());
    Trainer trainer(made->second);
    const Dict group = adam_state(trainer).at("param_groups").list()[0].dict();
    std::set<std::string> found;
    for (const auto& [name, value] : group) found.insert(name);
    CHECK(found.erase("params") == 1);
    CHECK(found == expected);
    for (const char* name : {"maximize", "capturable", "differentiable"}) {
      if (const Value* value = group.find(name)) CHECK_FALSE(value->to_bool());
    }
    for (const char* name : {"foreach", "fused"}) {
      if (const Value* value = group.find(name)) CHECK(value->is_none());
    }
    if (const Value* value = group.find("decoupled_weight_decay")) CHECK(value->to_bool() == (kind == "AdamW"));
  }
}

TEST_CASE("options that LibTorch lacks may be absent from a checkpoint") {
  for (const auto& [name, make] : makers()) {
    const auto& shown = name;
    CAPTURE(shown);
    Trainer first(make), second(make);
    losses(first, 0, 3);
    StateDict saved = first.state(true), state = second.state(true);
    for (const char* other : {"maximize", "foreach", "capturable", "differentiable", "fused", "decoupled_weight_decay"})
      saved["optim"]["param_groups"].list()[0].dict().erase(other);
    load(save({saved}), state);
    second.take_over(state, true);
    CHECK(losses(second, 3, 6) == losses(first, 3, 6));
  }
  // AdamW's decay is another one than Adam's.
  Trainer adamw(makers()[2].second), adam(makers()[0].second);
  StateDict state = adam.state(true);
  load(save({adamw.state(true)}), state);
  CHECK(code_of([&] { adam.take_over(state, true); }) == ErrorCode::kMismatch);
}

TEST_CASE("parameter groups keep their own options and names") {
  torch::nn::Linear first(2, 2), second(2, 2);
  std::vector<optim::OptimizerParamGroup> groups;
  groups.emplace_back(first->parameters(), std::make_unique<optim::SGDOptions>(0.1));
  groups.emplace_back(second->parameters(), std::make_unique<optim::SGDOptions>(0.2));
  static_cast<optim::SGDOptions&>(groups[1].options()).momentum(0.9);
  optim::SGD sgd(groups, optim::SGDOptions(0.3));
  Dict dict = optimizer_state_dict(sgd);
  CHECK(dict["state"].dict().size() == 2);
  CHECK(dict["state"].dict().contains("2"));
  CHECK(dict["param_groups"].list()[1]["lr"].to_double() == 0.2);
  dict["param_groups"].list()[1]["lr"] = 0.05;
  load_optimizer_state_dict(sgd, dict);
  CHECK(static_cast<optim::SGDOptions&>(sgd.param_groups()[1].options()).lr() == 0.05);
  CHECK(static_cast<optim::SGDOptions&>(sgd.param_groups()[0].options()).lr() == 0.1);
}

TEST_CASE("the state of a declared parameter follows its shard") {
  const torch::Tensor whole = counted({4, 3});
  std::vector<StateDict> saved;
  std::vector<torch::Tensor> parameters;
  std::vector<std::shared_ptr<optim::Adam>> optimizers;
  for (int rank : {0, 1}) {
    parameters.push_back(whole.slice(0, 2 * rank, 2 * rank + 2).clone().requires_grad_());
    declare_shard(parameters.back(), {{2 * rank, 0}, {2, 3}}, {4, 3});
    optimizers.push_back(std::make_shared<optim::Adam>(std::vector<torch::Tensor>{parameters.back()}, optim::AdamOptions(0.1)));
    parameters.back().mutable_grad() = parameters.back().detach().clone();
    optimizers.back()->step();
    saved.push_back({{"optim", optimizer_state_dict(*optimizers.back())}});
    REQUIRE(saved.back()["optim"]["state"]["0"]["exp_avg"].is_sharded());
  }
  // The other rank's part has the same size.
  CHECK(thrown_by([&] { load_optimizer_state_dict(*optimizers[0], saved[1]["optim"].dict()); }) ==
        Saying{ErrorCode::kMismatch,
               "is [2:4, 0:3] of a tensor of size [4, 3], the parameter [0:2, 0:3] of a tensor of size [4, 3]"});
  const MemoryCheckpoint checkpoint = save(saved);
  CHECK(std::get<TensorStorageMetadata>(*checkpoint.metadata.find("optim.state.0.exp_avg")).size == Extents{4, 3});
  torch::Tensor one = torch::zeros({4, 3}, torch::requires_grad());
  optim::Adam adam(std::vector<torch::Tensor>{one}, optim::AdamOptions(0.5));
  StateDict state{{"optim", optimizer_state_dict(adam)}};
  load(checkpoint, state);
  load_optimizer_state_dict(adam, state["optim"].dict());
  const auto& loaded = static_cast<optim::AdamParamState&>(*adam.state().at(optimizer_state_key(one)));
  CHECK(loaded.step() == 1);
  const auto part = [&](std::size_t rank) {
    return static_cast<optim::AdamParamState&>(*optimizers[rank]->state().at(optimizer_state_key(parameters[rank]))).exp_avg();
  };
  CHECK(same(loaded.exp_avg(), torch::cat({part(0), part(1)})));
}
