// Loads of optimizers made otherwise than the saved ones: all of the state comes back, or nothing
// changes.
#include <cairn/tests/support/torch.hpp>
//
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <cairn/formats/torch_archive.hpp>
#include <cairn/runtime/cairn.hpp>
#include <cairn/state/leaf_bytes.hpp>
#include <cairn/tests/support/in_process_world.hpp>
#include <cairn/tests/support/temporary_directory.hpp>
#include <cairn/tests/support/thrown.hpp>

namespace cairn::testing {
namespace {

namespace optim = torch::optim;
using Make = std::function<std::shared_ptr<optim::Optimizer>(std::vector<torch::Tensor>)>;

template <class Optimizer, class Options>
Make made(Options options) {
  return [options](std::vector<torch::Tensor> parameters) { return std::make_shared<Optimizer>(std::move(parameters), options); };
}
const Make kPlainSgd = made<optim::SGD>(optim::SGDOptions(0.05));
const Make kMomentum = made<optim::SGD>(optim::SGDOptions(0.05).momentum(0.9));
const Make kAdam = made<optim::Adam>(optim::AdamOptions(0.01));

struct Net : torch::nn::Module {
  Net() : body(4, 4), head(4, 2) {
    register_module("body", body);
    register_module("head", head);
  }
  torch::nn::Linear body, head;
};

struct Trainer {
  explicit Trainer(const Make& make, std::uint64_t seed = 7) {
    torch::manual_seed(seed);
    net = std::make_shared<Net>();
    optimizer = make(net->parameters());
  }
  double step(int number) {
    torch::manual_seed(static_cast<std::uint64_t>(1000 + number));
    const torch::Tensor input = torch::randn({8, 4});
    optimizer->zero_grad();
    const torch::Tensor loss = (net->head(torch::tanh(net->body(input))) - input.slice(1, 0, 2)).square().mean();
    loss.backward();
    optimizer->step();
    return loss.item<double>();
  }
  std::vector<double> steps(int from, int to) {
    std::vector<double> losses;
    for (int number = from; number < to; ++number) losses.push_back(step(number));
    return losses;
  }
  StateDict state() { return {{"model", net}, {"optimizer", stateful(optimizer, net)}, {"step", 0}}; }
  Dict optimizer_state() { return optimizer_state_dict(*optimizer, net.get()); }
  // All bytes of model and optimizer.
  Bytes contents() { return serialize_leaf(List{module_state_dict(*net), optimizer_state()}); }

  std::shared_ptr<Net> net;
  std::shared_ptr<optim::Optimizer> optimizer;
};

Dict& group_of(Dict& optimizer_state) { return optimizer_state["param_groups"].list()[0].dict(); }

TEST_CASE("an optimizer gets the checkpoint's options and buffers, however constructed") {
  const std::vector<std::vector<Make>> alike{
      {kPlainSgd, kMomentum, made<optim::SGD>(optim::SGDOptions(0.1).momentum(0.9).nesterov(true)),
       made<optim::SGD>(optim::SGDOptions(0.1).momentum(0.9).dampening(0.5))},
      {kAdam, made<optim::Adam>(optim::AdamOptions(0.02).amsgrad(true).betas({0.8, 0.95}))},
      {made<optim::AdamW>(optim::AdamWOptions(0.01)), made<optim::AdamW>(optim::AdamWOptions(0.02).amsgrad(true))},
      {made<optim::RMSprop>(optim::RMSpropOptions(0.01)), made<optim::RMSprop>(optim::RMSpropOptions(0.01).centered(true)),
       made<optim::RMSprop>(optim::RMSpropOptions(0.02).momentum(0.5))},
      {made<optim::Adagrad>(optim::AdagradOptions(0.05)),
       made<optim::Adagrad>(optim::AdagradOptions(0.1).lr_decay(0.01).initial_accumulator_value(0.1))}};
  const TemporaryDirectory directory;
  for (std::size_t kind = 0; kind < alike.size(); ++kind) {
    for (std::size_t from = 0; from < alike[kind].size(); ++from) {
      for (const int saved_after : {0, 3}) {
        Trainer straight(alike[kind][from]);
        straight.steps(0, saved_after);
        const std::string place =
            directory.path() + "/" + std::to_string(kind) + std::to_string(from) + std::to_string(saved_after);
        save(straight.state(), place);
        const std::vector<double> expected = straight.steps(saved_after, saved_after + 3);
        for (std::size_t into = 0; into < alike[kind].size(); ++into) {
          for (const int steps_before : {0, 2}) {
            CAPTURE(place);
            CAPTURE(into);
            CAPTURE(steps_before);
            Trainer other(alike[kind][into], 8);
            other.steps(0, steps_before);
            StateDict state = other.state();
            CHECK(load(state, place).unexpected.empty());
            CHECK(other.steps(saved_after, saved_after + 3) == expected);
            CHECK(other.contents() == straight.contents());
          }
        }
      }
    }
  }
}

TEST_CASE("a load whose optimizer does not fit changes nothing, on all ranks") {
  using Spoil = std::function<void(Dict&)>;
  struct Case {
    Make into;
    Spoil spoil;
    std::vector<std::string> texts;
  };
  const auto on_group = [](std::function<void(Dict&)> spoil) -> Spoil { return [spoil](Dict& state) { spoil(group_of(state)); }; };
  const Make two_groups = [](std::vector<torch::Tensor> all) {
    optim::OptimizerParamGroup first({all[0], all[1]}), second({all[2], all[3]});
    return std::make_shared<optim::Adam>(std::vector<optim::OptimizerParamGroup>{first, second}, optim::AdamOptions(0.01));
  };
  const Make head_only = [](std::vector<torch::Tensor> all) { return kAdam({all[2], all[3]}); };
  const Make decaying = made<optim::AdamW>(optim::AdamWOptions(0.01).weight_decay(0.1));
  const std::vector<Case> cases{
      {two_groups, [](Dict&) {}, {"it has 1 parameter groups, the optimizer 2"}},
      {head_only, [](Dict&) {}, {"names other parameters", "only it has \"body.bias\", \"body.weight\""}},
      {kAdam, on_group([](Dict& group) { group["params"] = List{"head.weight"}; }), {"only the group has \"body.bias\""}},
      {kPlainSgd, [](Dict&) {}, {R"(state["body.weight"]["exp_avg"] is not state of this kind)"}},
      {kAdam, on_group([](Dict& group) { group["maximize"] = true; }), {"param_groups[0] maximizes"}},
      {kAdam, on_group([](Dict& group) { group["lr"] = "fast"; }), {R"(param_groups[0]["lr"] is a text)"}},
      {kAdam,
       on_group([](Dict& group) {
         group["decoupled_weight_decay"] = true;
         group["weight_decay"] = 0.1;
       }),
       {"use AdamW"}},
      {decaying, on_group([](Dict& group) { group["weight_decay"] = 0.1; }), {"use Adam"}},
      {kAdam, [](Dict& state) { state["state"]["head.bias"].dict().erase("exp_avg"); }, {"optimizer.state.head.bias.exp_avg"}},
      {kAdam, [](Dict& state) { state["state"]["head.bias"].dict().erase("step"); }, {"optimizer.state.head.bias.step"}},
      {kAdam, on_group([](Dict& group) { group["amsgrad"] = true; }), {"optimizer.state.head.bias.max_exp_avg_sq"}},
      {kAdam, [](Dict& state) { state["state"]["head.bias"]["exp_avg"] = 1.5; }, {"optimizer.state.head.bias.exp_avg"}},
      {kAdam,
       [](Dict& state) { state["state"]["head.bias"]["exp_avg"] = torch::ones({3}); },
       {"optimizer.state.head.bias.exp_avg"}},
      {kAdam, [](Dict& state) { state["state"]["tail.bias"]["step"] = 1; }, {"\"tail.bias\"] belongs to no parameter"}},
      {kAdam, [](Dict& state) { state.erase("param_groups"); }, {"optimizer.param_groups.0.lr"}}};
  const TemporaryDirectory directory;
  Trainer saved(kAdam);
  saved.steps(0, 2);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    CAPTURE(i);
    Dict optimizer_state = saved.optimizer_state();
    cases[i].spoil(optimizer_state);
    const std::string place = directory.path() + "/" + std::to_string(i);
    save({{"model", saved.net}, {"optimizer", optimizer_state}, {"step", 2}}, place);
    on_all_ranks(2, [&](World& world) {
      // Rank 0's dict has no optimizer.
      Trainer into(world.rank() == 0 ? kAdam : cases[i].into, 8);
      into.steps(0, 1);
      const Bytes before = into.contents();
      StateDict state = into.state();
      if (world.rank() == 0) state.erase("optimizer");
      Checkpointer checkpointer(world);
      const Thrown thrown = thrown_by([&] { checkpointer.load(state, place); });
      for (const std::string& text : cases[i].texts) CHECK_MESSAGE(thrown.says(text), thrown.what);
      CHECK(into.contents() == before);
      CHECK(state["step"].to_int() == 0);
    });
  }
}

TEST_CASE("a parameter without any stored state starts afresh") {
  const TemporaryDirectory directory;
  Trainer saved(kAdam);
  for (auto& parameter : saved.net->body->parameters()) parameter.requires_grad_(false);
  saved.steps(0, 3);
  save(saved.state(), directory.path() + "/frozen");
  Dict unstepped = saved.optimizer_state();
  unstepped.erase("state");
  save({{"model", saved.net}, {"optimizer", unstepped}, {"step", 0}}, directory.path() + "/unstepped");
  for (const int steps_before : {0, 2}) {
    for (const std::string name : {"frozen", "unstepped"}) {
      CAPTURE(name);
      Trainer into(kAdam);
      into.steps(0, steps_before);
      StateDict state = into.state();
      load(state, directory.path() + "/" + name);
      Dict found = into.optimizer_state();
      CHECK(found["state"]["body.weight"]["step"].to_int() == 0);
      CHECK_FALSE(found["state"]["body.weight"]["exp_avg"].tensor().any().item<bool>());
      CHECK(found["state"]["head.weight"]["step"].to_int() == (name == "frozen" ? 3 : 0));
    }
  }
  // PyTorch's SGD has momentum, but before its first step no buffers, or None.
  Trainer sgd(kMomentum);
  Dict of_sgd = sgd.optimizer_state();
  for (auto& item : of_sgd["state"].dict()) item.second["momentum_buffer"] = Value();
  for (const bool has_none : {true, false}) {
    if (!has_none) of_sgd.erase("state");
    const std::string place = directory.path() + (has_none ? "/none" : "/absent");
    save({{"model", sgd.net}, {"optimizer", of_sgd}, {"step", 0}}, place);
    Trainer into(kPlainSgd), straight(kMomentum);
    StateDict state = into.state();
    load(state, place);
    CHECK(into.steps(0, 3) == straight.steps(0, 3));
  }
}

TEST_CASE("options that LibTorch lacks survive a load and a save") {
  const TemporaryDirectory directory;
  const Make two_groups = [](std::vector<torch::Tensor> all) {
    optim::OptimizerParamGroup first({all[0], all[1]}), second({all[2], all[3]});
    return std::make_shared<optim::Adam>(std::vector<optim::OptimizerParamGroup>{first, second}, optim::AdamOptions(0.01));
  };
  Trainer saved(two_groups);
  Dict given = saved.optimizer_state();
  Dict& group = group_of(given);
  group["initial_lr"] = 0.3;
  group["foreach"] = true;
  group["fused"] = false;
  group["capturable"] = true;
  group["name"] = "body";
  group["none"] = Value();
  group["betas_seen"] = c10::IValue(c10::ivalue::Tuple::create(0.5, 0.75));
  group["warm up.steps"] = List{1, 2, 3};
  group["schedule"] = Dict{{"kind", "cosine"}, {"at", Dict{{"step", 7}}}, {"table", torch::arange(3)}};
  group["bytes"] = Blob{"abc"};
  group["scale"] = torch::tensor(1.5);
  given["param_groups"].list()[1]["initial_lr"] = 0.6;
  save({{"model", saved.net}, {"optimizer", given}, {"step", 0}}, directory.path() + "/given");

  const auto groups_at = [&](const std::string& place) {
    Dict loaded = load_by_keys(directory.path() + place, {"optimizer.param_groups"});
    std::map<std::string, Bytes> options;
    for (std::size_t i : {0, 1}) {
      for (const auto& [name, value] : loaded["optimizer"]["param_groups"].list()[i].dict())
        options.emplace(std::to_string(i) + name, serialize_leaf(value));
    }
    return options;
  };
  Trainer other(two_groups);
  StateDict state = other.state();
  CHECK(load(state, directory.path() + "/given").unexpected.empty());
  // They belong to the optimizer: another Stateful object saves them as well.
  save(other.state(), directory.path() + "/again");
  CHECK(groups_at("/again") == groups_at("/given"));
  other.steps(0, 1);

  // A group that is added has none; one whose parameters have changed has lost its own.
  const torch::Tensor more = torch::ones({2}, torch::requires_grad());
  other.optimizer->add_param_group(optim::OptimizerParamGroup({more}));
  Dict now = optimizer_state_dict(*other.optimizer);
  CHECK(now["param_groups"].list()[1]["initial_lr"].to_double() == 0.6);
  CHECK_FALSE(now["param_groups"].list()[2].dict().contains("initial_lr"));
  CHECK(now["param_groups"].list()[2]["lr"].to_double() == 0.01);
  other.optimizer->param_groups()[1].params().pop_back();
  now = optimizer_state_dict(*other.optimizer);
  CHECK_FALSE(now["param_groups"].list()[1].dict().contains("initial_lr"));
  // A checkpoint without them takes them away.
  save(saved.state(), directory.path() + "/without");
  Trainer third(two_groups);
  for (const char* place : {"/given", "/without"}) {
    state = third.state();
    load(state, directory.path() + place);
  }
  CHECK(third.contents() == saved.contents());
}

TEST_CASE("an opaque option survives a load that keeps it and a save, and fails any other load") {
  const TemporaryDirectory directory;
  Trainer saved(kAdam), other(kAdam);
  Dict given = saved.optimizer_state();
  const Bytes odd = write_torch_archive(ByteSpan("\x80\x02"
                                                 "cown\nSchedule\n)R."),
                                        {});
  group_of(given)["odd"] = read_leaf(odd);
  save({{"model", saved.net}, {"optimizer", given}, {"step", 0}}, directory.path() + "/given");
  StateDict state = other.state();
  const Bytes before = other.contents();
  const Thrown refused = thrown_by([&] { load(state, directory.path() + "/given"); });
  for (const char* text : {"the check of \"optimizer\": ", "optimizer.param_groups.0.odd", "own.Schedule"})
    CHECK_MESSAGE(refused.says(text), refused.what);
  CHECK(other.contents() == before);
  LoadOptions options;
  options.planning.keep_opaque = {"optimizer"};
  load(state, directory.path() + "/given", options);
  save(other.state(), directory.path() + "/again");
  Dict loaded = load_by_keys(directory.path() + "/again", {"optimizer.param_groups"}, options);
  CHECK(group_of(loaded["optimizer"].dict())["odd"].opaque().archive() == odd);
}

TEST_CASE("a parameter that an optimizer lists twice is saved once, and loads from either") {
  struct TiedNet : Net {
    TiedNet() { tied = register_parameter("tied", body->weight); }
    torch::Tensor tied;
  };
  const TemporaryDirectory directory;
  const auto group = [](std::vector<torch::Tensor> parameters) { return optim::OptimizerParamGroup(std::move(parameters)); };
  using Groups = std::vector<optim::OptimizerParamGroup>;
  const auto check = [&](const std::string& name, const auto& make) {
    // Listed once, twice in a group, and in two groups.
    const std::vector<std::function<Groups(const TiedNet&)>> listed{
        [&](const TiedNet& net) {
          return Groups{group({net.tied, net.body->bias}), group({net.head->weight})};
        },
        [&](const TiedNet& net) {
          return Groups{group({net.tied, net.body->bias, net.body->weight}), group({net.head->weight})};
        },
        [&](const TiedNet& net) {
          return Groups{group({net.tied, net.body->bias}), group({net.head->weight, net.tied})};
        }};
    for (std::size_t from = 0; from < listed.size(); ++from) {
      for (const bool named : {true, false}) {
        auto net = std::make_shared<TiedNet>();
        const auto optimizer = make(listed[from](*net));
        net->head(net->body(torch::ones({1, 4}))).sum().backward();
        optimizer->step();
        const std::string place = directory.path() + "/" + name + std::to_string(from) + (named ? "named" : "");
        save({{"model", net}, {"optimizer", stateful(optimizer, named ? net : nullptr)}}, place);
        const Dict saved = optimizer_state_dict(*optimizer, named ? net.get() : nullptr);
        for (const auto& into : listed) {
          CAPTURE(place);
          auto other = std::make_shared<TiedNet>();
          const auto fresh = make(into(*other));
          StateDict state{{"model", other}, {"optimizer", stateful(fresh, named ? other : nullptr)}};
          load(state, place);
          const Dict found = optimizer_state_dict(*fresh, named ? other.get() : nullptr);
          CHECK(serialize_leaf(found) == serialize_leaf(saved));
          CHECK(found.at("param_groups").list()[0]["params"].list().size() == 2);
        }
      }
    }
  };
  check("adam", [](Groups groups) { return std::make_shared<optim::Adam>(std::move(groups), optim::AdamOptions(0.01)); });
  check("sgd", [](Groups groups) { return std::make_shared<optim::SGD>(std::move(groups), optim::SGDOptions(0.1).momentum(0.9)); });
}

TEST_CASE("a user's planner and reader load optimizers and tied tensors as Cairn's do") {
  struct Planner final : DefaultLoadPlanner {};
  // Needs the user's planner, except for the optimizer's plain values.
  struct Reader final : CheckpointReader {
    Future<bool> read_data(const LoadPlan& plan, LoadPlanner& planner) override {
      others += dynamic_cast<Planner*>(&planner) == nullptr ? 1 : 0;
      return CheckpointReader::read_data(plan, planner);
    }
    int others = 0;
  };
  const TemporaryDirectory directory;
  Trainer saved(kMomentum), other(kPlainSgd, 8);
  saved.steps(0, 2);
  StateDict state = saved.state();
  state["tied"] = List{torch::ones({3}), torch::ones({3})};
  save(state, directory.path() + "/equal");
  state["tied"] = List{torch::ones({3}), torch::zeros({3})};
  save(state, directory.path() + "/different");
  state = other.state();
  const torch::Tensor tied = torch::zeros({3});
  state["tied"] = List{tied, tied};
  const auto reader = std::make_shared<Reader>();
  LoadOptions options;
  options.planner = std::make_shared<Planner>();
  options.storage_reader = reader;
  const Bytes before = other.contents();
  CHECK(thrown_by([&] { load(state, directory.path() + "/different", options); }).says("\"tied.0\" and \"tied.1\""));
  CHECK(other.contents() == before);
  // A load that has failed leaves nothing behind in the object.
  Dict alone = other.optimizer_state();
  group_of(alone)["momentum"] = 0.9;
  CHECK(thrown_by([&] { state["optimizer"].stateful()->load_state_dict(alone); }).says("turns momentum on"));
  load(state, directory.path() + "/equal", options);
  CHECK(other.contents() == saved.contents());
  CHECK(tied.equal(torch::ones({3})));
  CHECK(reader->others == 2);
}

// Two optimizers of one module. `shared`: both train the weight of the head.
struct Pair {
  explicit Pair(bool shared, std::uint64_t seed = 7) {
    torch::manual_seed(seed);
    net = std::make_shared<Net>();
    std::vector<torch::Tensor> of_first = net->body->parameters();
    if (shared) of_first.push_back(net->head->weight);
    first = kMomentum(of_first);
    second = kAdam(net->head->parameters());
  }
  void step() {
    const torch::Tensor input = torch::arange(32, torch::kFloat32).reshape({8, 4}).mul(0.01);
    net->zero_grad();
    net->head(torch::tanh(net->body(input))).square().mean().backward();
    first->step();
    second->step();
  }
  Bytes contents() const {
    return serialize_leaf(
        List{module_state_dict(*net), optimizer_state_dict(*first, net.get()), optimizer_state_dict(*second, net.get())});
  }
  StateDict apart() const { return {{"model", net}, {"first", stateful(first, net)}, {"second", stateful(second, net)}}; }
  StateDict joined(bool in_order) const {
    using Optimizers = std::vector<std::shared_ptr<optim::Optimizer>>;
    return {{"model", net}, {"optimizers", stateful(in_order ? Optimizers{first, second} : Optimizers{second, first}, net)}};
  }

  std::shared_ptr<Net> net;
  std::shared_ptr<optim::Optimizer> first, second;
};

TEST_CASE("several optimizers of one module load from one dict, in any order") {
  for (const bool in_order : {true, false}) {
    const TemporaryDirectory directory;
    Pair saved(false), other(false, 8);
    saved.step();
    save(saved.joined(true), directory.path());
    StateDict state = other.joined(in_order);
    CHECK(load(state, directory.path()).unexpected.empty());
    CHECK(other.contents() == saved.contents());
    saved.step();
    other.step();
    CHECK(other.contents() == saved.contents());
    // One of them alone does not have all parameters of the dict, and nothing is changed.
    const Bytes before = other.contents();
    StateDict one{{"optimizers", stateful(other.second, other.net)}};
    CHECK(thrown_by([&] { load(one, directory.path()); }).says("it has 2 parameter groups, the optimizer 1"));
    CHECK(other.contents() == before);
  }
  const Pair both(true);
  const TemporaryDirectory directory;
  CHECK(thrown_by([&] { save(both.joined(true), directory.path()); }).says("two of them train \"head.weight\""));
  CHECK(thrown_by([&] {
          stateful(std::vector<std::shared_ptr<optim::Optimizer>>{both.first, nullptr}, both.net);
        }).code == ErrorCode::kInvalidArgument);
}

// PyTorch 2.14 saved it: "optimizers" is what get_optimizer_state_dict makes of a list of both.
TEST_CASE("several optimizers load from a checkpoint of PyTorch's") {
  const std::string place = std::string(CAIRN_TEST_DATA) + "/pytorch-2.14/optimizers";
  for (const bool joined : {false, true}) {
    Pair pair(false);
    StateDict state = joined ? pair.joined(false) : pair.apart();
    load(state, place);
    CHECK(static_cast<const optim::AdamOptions&>(pair.second->param_groups()[0].options()).lr() == 0.02);
    pair.step();
    Dict after;
    for (const auto& parameter : pair.net->named_parameters()) after.insert(parameter.key(), torch::zeros_like(parameter.value()));
    StateDict expected{{"after", after}};
    load(expected, place);
    for (const auto& parameter : pair.net->named_parameters()) {
      CAPTURE(parameter.key());
      CHECK(torch::allclose(parameter.value(), expected.at("after").dict().at(parameter.key()).tensor(), 0, 1e-6));
    }
  }
}

// Two parameters, cut by rows, and an optimizer for each.
struct Rows : torch::nn::Module {
  Rows(int rank, int ranks) {
    for (const char* name : {"a", "b"}) {
      const torch::Tensor whole = torch::arange(24, torch::kFloat32).reshape({6, 4});
      const DeviceMesh mesh({ranks});
      const Box box = *local_box({6, 4}, mesh, {Shard{0}}, rank);
      const auto& rows = register_parameter(name, whole.narrow(0, box.offsets[0], box.sizes[0]).clone());
      declare_shard(rows, {6, 4}, mesh, {Shard{0}}, rank);
    }
    first = kMomentum({named_parameters()["a"]});
    second = kAdam({named_parameters()["b"]});
  }
  void step() {
    for (torch::Tensor& parameter : parameters()) parameter.mutable_grad() = parameter.detach().mul(0.1);
    first->step();
    second->step();
  }
  std::shared_ptr<optim::Optimizer> first, second;
};

TEST_CASE("several optimizers of one module are resharded") {
  for (const bool joined : {false, true}) {
    const TemporaryDirectory directory;
    const auto state_of = [&](const std::shared_ptr<Rows>& rows) -> StateDict {
      const std::vector<std::shared_ptr<optim::Optimizer>> both{rows->first, rows->second};
      if (joined) return {{"model", rows}, {"optimizers", stateful(both, rows)}};
      return {{"model", rows}, {"first", stateful(rows->first, rows)}, {"second", stateful(rows->second, rows)}};
    };
    Rows whole(0, 1);
    whole.step();
    on_all_ranks(2, [&](World& world) {
      const auto rows = std::make_shared<Rows>(world.rank(), 2);
      rows->step();
      Checkpointer(world).save(state_of(rows), directory.path() + "/saved");
    });
    whole.step();
    std::vector<std::shared_ptr<Rows>> loaded(3);
    on_all_ranks(3, [&](World& world) {
      auto& rows = loaded[static_cast<std::size_t>(world.rank())] = std::make_shared<Rows>(world.rank(), 3);
      StateDict state = state_of(rows);
      Checkpointer(world).load(state, directory.path() + "/saved");
      rows->step();  // as the whole only if all of the state was loaded
    });
    for (const char* name : {"a", "b"}) {
      std::vector<torch::Tensor> parts;
      for (const auto& rows : loaded) parts.push_back(rows->named_parameters()[name]);
      CHECK(torch::equal(torch::cat(parts), whole.named_parameters()[name]));
    }
  }
}

}  // namespace
}  // namespace cairn::testing
