// Training with sharded parameters, saved and loaded by rank processes.
#include <map>

#include <cairn/runtime/cairn.hpp>
#include <cairn/runtime/process_groups.hpp>
#include <cairn/runtime/sharded_optimizer.hpp>
#include <cairn/runtime/testing.hpp>
#include <cairn/state/script_module.hpp>
#include <cairn/state/tensor_types.hpp>
#include <cairn/tests/support/safetensors.hpp>
#include <cairn/tests/support/scripted.hpp>
#include <cairn/tests/support/thrown.hpp>
#include <cairn/tests/support/torch.hpp>
#include <cairn/tests/training/sharded_models.hpp>
#include <cairn/training/parallelize.hpp>
#include <cairn/training/state_dicts.hpp>

using namespace cairn;
using namespace cairn::testing;
using namespace cairn::training;

namespace {

const ProcessGroup& ranks() {
  static const ProcessGroup group = [] {
    at::set_num_threads(1);
    const char* const local_rank = std::getenv("LOCAL_RANK");
    rank_device() = device_of_rank(local_rank == nullptr ? 0 : std::stoi(local_rank));
    static const c10::DeviceGuard of_this_process(rank_device());
    return process_group_from_environment();
  }();
  return group;
}

Hooked<Chain> chain_of(const std::vector<std::int64_t>& sizes, std::uint64_t seed = 0) {
  ranks();  // must run first, because it selects this rank's device
  torch::manual_seed(seed);
  return here(Hooked<Chain>(sizes));
}

Hooked<ScriptModule> scripted_chain_of(const std::vector<std::int64_t>& sizes, std::uint64_t seed = 0) {
  ranks();
  torch::manual_seed(seed);
  return here(Hooked<ScriptModule>(scripted_chain(sizes)));
}

enum class Wrapper { kFull, kHybrid, kReplicated, kFullAndParallel };

template <class Model>
void wrap(Hooked<Model>& model, Wrapper wrapper, const std::string& name) {
  FullyShardOptions options;
  options.wrap_policy = wrap_classes<torch::nn::LinearImpl, ScriptModuleImpl>();
  if (wrapper == Wrapper::kReplicated) options.strategy = ShardingStrategy::kNoShard;
  if (wrapper == Wrapper::kFullAndParallel) {
    const ProcessMesh grid(ranks(), {2, 2}, {"dp", "tp"}, name);
    parallelize(*model, grid.along("tp"), {{"net1", ColwiseParallel{}}, {"net2", RowwiseParallel{}}});
    return fully_shard(model, grid.along("dp"), options);
  }
  const ProcessMesh mesh =
      wrapper == Wrapper::kHybrid ? ProcessMesh(ranks(), {2, 2}, {"replicas", "shards"}, name) : ProcessMesh(ranks());
  fully_shard(model, mesh, options);
}

template <class Model>
double train_step(Model& model, torch::optim::Optimizer& optimizer, const torch::Tensor& input) {
  optimizer.zero_grad();
  const torch::Tensor loss = model(input).sum();
  loss.backward();
  optimizer.step();
  return loss.template item<double>();
}

torch::Tensor random_input(std::int64_t rows, std::int64_t columns) {
  torch::manual_seed(0);
  return here(torch::rand({rows, columns}));
}

// Returns copies of the local tensors of a state dict.
std::map<std::string, torch::Tensor> local_copies(const Dict& state_dict) {
  std::map<std::string, torch::Tensor> copies;
  for (const auto& [name, value] : state_dict) {
    copies[name] = (value.is_sharded() ? value.sharded().local_shards().front().tensor : value.tensor()).detach().clone();
  }
  return copies;
}

bool agree(const std::map<std::string, torch::Tensor>& a, const std::map<std::string, torch::Tensor>& b, bool expected) {
  if (a.size() != b.size()) return false;
  for (const auto& [name, tensor] : a) {
    // Empty parts cannot differ. A bias behind a dead ReLU may stay equal.
    if (tensor.numel() > 0 && tensor.equal(b.at(name)) != expected) return false;
  }
  return true;
}

bool is_uneven_subcase() {
  bool is = false;
  SUBCASE("even") { is = false; }
  SUBCASE("uneven") { is = true; }
  return is;
}

std::vector<std::int64_t> sizes_of_chain(bool uneven) {
  if (uneven) return {5, 10, 15, 30, 5};
  return {5, 8, 4, 12};
}

}  // namespace

TEST_CASE("B4.1 a hybrid-sharded model is saved, trained on, and loaded again") {
  const bool uneven = is_uneven_subcase();
  const auto sizes = sizes_of_chain(uneven);
  auto model = chain_of(sizes);
  wrap(model, Wrapper::kHybrid, uneven ? "b41u" : "b41e");
  torch::optim::Adam optimizer(model->parameters(), 0.1);
  const std::string id = shared_directory() + (uneven ? "/hybrid_uneven" : "/hybrid_even");
  Checkpointer checkpointer(world());
  const Dict before = get_model_state_dict(*model);
  const auto saved = local_copies(before);
  checkpointer.save({{"model", before}}, id);

  train_step(model, optimizer, random_input(4, 5));
  const auto trained = local_copies(get_model_state_dict(*model));
  CHECK_FALSE(agree(saved, trained, true));

  StateDict state{{"model", get_model_state_dict(*model)}};
  checkpointer.load(state, id);
  const Dict loaded = get_model_state_dict(*model);
  CHECK(agree(saved, local_copies(loaded), true));
  REQUIRE(loaded.size() == before.size());
  for (const auto& [name, value] : loaded) {
    REQUIRE(value.is_sharded());
    const ShardedTensor& was = before.at(name).sharded();
    CHECK((*value.sharded().mesh() == *was.mesh()));
    CHECK((value.sharded().placements() == was.placements()));
    CHECK((was.placements() == std::vector<Placement>{Replicate{}, Shard{0}}));
    CHECK((value.sharded().size() == was.size()));
  }
}

TEST_CASE("B4.2 a hybrid-sharded model loads into a fully sharded one") {
  const bool uneven = is_uneven_subcase();
  const auto sizes = sizes_of_chain(uneven);
  auto hybrid = chain_of(sizes, 1), full = chain_of(sizes, 2);
  wrap(hybrid, Wrapper::kHybrid, uneven ? "b42u" : "b42e");
  wrap(full, Wrapper::kFull, "");
  if (uneven && world().size() == 4 && world().rank() == 3) {
    CHECK(full->parameters().back().numel() == 0);  // 5 rows over 4 ranks
  }
  const std::string id = shared_directory() + (uneven ? "/resharded_uneven" : "/resharded_even");
  Checkpointer checkpointer(world());
  checkpointer.save({{"model", get_model_state_dict(*hybrid)}}, id);
  CHECK(largest_difference(whole_parameters(*hybrid), whole_parameters(*full)) > 0);

  StateDict state{{"model", get_model_state_dict(*full)}};
  checkpointer.load(state, id);
  CHECK(largest_difference(whole_parameters(*hybrid), whole_parameters(*full)) == 0);
  const Dict from = get_model_state_dict(*hybrid), to = get_model_state_dict(*full);
  REQUIRE(from.size() == to.size());
  for (const auto& [name, value] : from) {
    CHECK_FALSE((*value.sharded().mesh() == *to.at(name).sharded().mesh()));
    CHECK_FALSE((value.sharded().placements() == to.at(name).sharded().placements()));
  }
}

namespace {

// A tensor that is saved through Stateful.
struct TestState : Stateful {
  explicit TestState(const torch::Tensor& values) : tensor(values) {}
  Dict state_dict() override { return {{"values", tensor}}; }
  void load_state_dict(const Dict& state_dict) override { tensor = state_dict.at("values").tensor(); }
  torch::Tensor tensor;
};

bool close(const torch::Tensor& a, const torch::Tensor& b, double tolerance) {
  return a.sizes() == b.sizes() && (a - b).abs().max().item<double>() <= tolerance;
}

// `tolerance` is 0 if the wrapped model adds in the same order as the plain one. With `background`,
// saves asynchronously and trains during the save.
template <class Make>
void check_end_to_end(const Make& make, Wrapper wrapper, const std::string& name, double tolerance = 0,
                      const std::optional<AsyncSaveOptions>& background = {}) {
  const std::vector<std::int64_t> sizes{8, 16, 32, 64, 8};
  auto plain = make(sizes, 0), model = make(sizes, 0);
  wrap(model, wrapper, name + "/first");
  torch::optim::Adam plain_optimizer(plain->parameters(), 0.1);
  auto optimizer = std::make_shared<torch::optim::Adam>(model->parameters(), 0.1);
  const torch::Tensor input = random_input(8, 8);
  double loss = 0;
  std::string history;
  for (int i = 0; i < 2; ++i) {
    train_step(plain, plain_optimizer, input);
    loss = train_step(model, *optimizer, input);
    history += std::to_string(loss) + " ";
  }
  auto object = std::make_shared<TestState>(random_input(10, 10));
  const torch::Tensor current_loss = torch::tensor(static_cast<float>(loss));
  const std::string id = shared_directory() + "/" + name;
  Checkpointer checkpointer(world());
  const std::shared_ptr<torch::nn::Module> as_module = model.ptr();
  const StateDict saved{{"model", as_module},
                        {"optimizer", stateful(optimizer, as_module)},
                        {"object", std::static_pointer_cast<Stateful>(object)},
                        {"train", Dict{{"step", torch::tensor(2, torch::kInt32)},
                                       {"loss", current_loss},
                                       {"losses", Blob{Bytes(history.begin(), history.end())}}}}};
  if (background) {
    const AsyncSaveResponse saving = checkpointer.async_save(saved, id, {}, *background);
    train_step(model, *optimizer, input);
    while (!saving.done()) saving.wait(std::chrono::milliseconds(1));
    saving.result();
  } else {
    checkpointer.save(saved, id);
  }

  auto fresh = make(sizes, 7);
  wrap(fresh, wrapper, name + "/second");
  auto fresh_optimizer = std::make_shared<torch::optim::Adam>(fresh->parameters(), 0.2);
  auto fresh_object = std::make_shared<TestState>(here(torch::zeros({10, 10})));
  const std::shared_ptr<torch::nn::Module> fresh_module = fresh.ptr();
  StateDict state{{"model", fresh_module},
                  {"optimizer", stateful(fresh_optimizer, fresh_module)},
                  {"object", std::static_pointer_cast<Stateful>(fresh_object)},
                  {"train", Dict{{"step", torch::tensor(0, torch::kInt32)}, {"loss", torch::zeros({})}, {"losses", Blob{}}}}};
  checkpointer.load(state, id);
  CHECK(fresh_object->tensor.equal(object->tensor));
  CHECK(state["train"]["step"].tensor().item<int>() == 2);
  CHECK(state["train"]["loss"].tensor().equal(current_loss));
  CHECK((state["train"]["losses"].blob() == Blob{Bytes(history.begin(), history.end())}));

  // One more step gives the same loss on the plain model and on the loaded one.
  const double expected = train_step(plain, plain_optimizer, input);
  const double resumed = train_step(fresh, *fresh_optimizer, input);
  CHECK(std::abs(resumed - expected) <= tolerance * std::abs(expected));
  // The saved model gives the identical loss. With `background`, it has already made that step.
  if (!background) CHECK(train_step(model, *optimizer, input) == resumed);
  CHECK(largest_difference(whole_parameters(*model), whole_parameters(*fresh)) == 0);
  CHECK(memory_use(*fresh).gathered == 0);

  StateDictOptions whole;
  whole.full_state_dict = true;
  const auto [of_model, of_optimizer] = get_state_dict(*fresh, *fresh_optimizer, whole);
  const auto [of_plain, of_plain_optimizer] = get_state_dict(*plain, plain_optimizer);
  REQUIRE(of_model.size() == of_plain.size());
  for (const auto& [key, value] : of_plain) CHECK(close(value.tensor(), of_model.at(key).tensor(), tolerance));
  for (const auto& [key, fields] : of_plain_optimizer.at("state").dict()) {
    for (const char* field : {"exp_avg", "exp_avg_sq"})
      CHECK(close(fields[field].tensor(), of_optimizer.at("state")[key][field].tensor(), tolerance));
    CHECK(fields["step"].to_int() == 3);
  }
  // The gathered state loads into a plain optimizer that has made no step.
  torch::optim::Adam gathered(plain->parameters(), 0.3);
  set_optimizer_state_dict(*plain, gathered, of_optimizer);
  const Dict again = get_optimizer_state_dict(*plain, gathered);
  for (const auto& [key, fields] : of_optimizer.at("state").dict())
    CHECK(fields["exp_avg"].tensor().equal(again.at("state")[key]["exp_avg"].tensor()));
  CHECK(again.at("param_groups").list()[0]["lr"].to_double() == 0.1);
}

}  // namespace

TEST_CASE("B2.1 fully sharded, hybrid and replicated training state, end to end") {
  SUBCASE("fully sharded") { check_end_to_end(chain_of, Wrapper::kFull, "end_full"); }
  SUBCASE("hybrid") { check_end_to_end(chain_of, Wrapper::kHybrid, "end_hybrid"); }
  SUBCASE("whole on every rank") { check_end_to_end(chain_of, Wrapper::kReplicated, "end_whole"); }
}

TEST_CASE("B2.3 fully sharded, hybrid and replicated training state of TorchScript modules, end to end") {
  const std::vector<std::int64_t> sizes{8, 16, 32};
  auto names = scripted_chain_of(sizes)->named_parameters().keys();
  CHECK((names == chain_of(sizes)->named_parameters().keys()));
  SUBCASE("fully sharded") { check_end_to_end(scripted_chain_of, Wrapper::kFull, "script_full"); }
  SUBCASE("hybrid") { check_end_to_end(scripted_chain_of, Wrapper::kHybrid, "script_hybrid"); }
  SUBCASE("whole on every rank") { check_end_to_end(scripted_chain_of, Wrapper::kReplicated, "script_whole"); }
}

TEST_CASE("B2.4 fully sharded training state, saved in the background, end to end") {
  AsyncSaveOptions background;
  SUBCASE("memory not being kept between saves") { background.staging.cache_staged_state_dict = false; }
  SUBCASE("memory being kept between saves") { background.staging.cache_staged_state_dict = true; }
  check_end_to_end(chain_of, Wrapper::kFull, background.staging.cache_staged_state_dict ? "end_async_kept" : "end_async", 0,
                   background);
}

namespace {

// Has no state, and runs a collective when it is loaded.
struct Talks : Stateful {
  explicit Talks(bool gathers_all) : gathers(gathers_all) {}
  Dict state_dict() override { return {}; }
  void load_state_dict(const Dict&) override {
    const torch::Tensor own = here(torch::full({2}, world().rank(), torch::kInt64));
    if (gathers) {
      heard = here(torch::zeros({2 * world().size()}, torch::kInt64));
      ranks().all_gather(heard, own);
    } else {
      heard = own;
      ranks().all_reduce(heard);
    }
  }
  const bool gathers;
  torch::Tensor heard;
};

}  // namespace

TEST_CASE("B2.5 Stateful objects that run collectives are loaded in one order on all ranks, whatever order they are given in") {
  ranks();
  const auto a = std::make_shared<Talks>(true), b = std::make_shared<Talks>(false);
  StateDict state;
  for (const bool first : {world().rank() == 0, world().rank() != 0})
    state.insert(first ? "A" : "B", std::static_pointer_cast<Stateful>(first ? a : b));
  Checkpointer checkpointer(world());
  checkpointer.save(state, shared_directory() + "/talking");
  checkpointer.load(state, shared_directory() + "/talking");
  CHECK(a->heard[-1].item<std::int64_t>() == world().size() - 1);
  CHECK(b->heard[0].item<std::int64_t>() == world().size() * (world().size() - 1) / 2);
}

TEST_CASE("B2.2 fully sharded training of parallel layers on a grid, end to end") {
  // Row-wise layers add in another order. Three Adam steps at 0.1 carry the rounding differences
  // on.
  check_end_to_end(chain_of, Wrapper::kFullAndParallel, "end_parallel", 1e-4);
}

TEST_CASE("B2.2 what parallel layers on a grid save loads into every other layout, and back") {
  const std::vector<std::int64_t> sizes{5, 7, 9, 3};  // uneven, and with empty parts on four ranks
  const auto in_layout = [&](int layout, std::uint64_t seed) {
    const std::string name = "layouts/" + std::to_string(layout) + "/" + std::to_string(seed);
    auto model = chain_of(sizes, seed);
    const ParallelPlan plan{{"net1", ColwiseParallel{}}, {"net2", RowwiseParallel{}}, {"net3", ColwiseParallel{true}}};
    if (layout == 0) return model;
    if (layout == 1) {
      wrap(model, Wrapper::kFull, name);
    } else if (layout == 2) {
      wrap(model, Wrapper::kFullAndParallel, name);
    } else if (layout == 3) {
      parallelize(*model, ProcessMesh(ranks()), plan);
    } else {  // the axes in reverse order
      const ProcessMesh grid(ranks(), {2, 2}, {"tp", "dp"}, name);
      parallelize(*model, grid.along("tp"), plan);
      fully_shard(model, grid.along("dp"));
    }
    return model;
  };
  Checkpointer checkpointer(world());
  for (int from = 0; from < 5; ++from) {
    CAPTURE(from);
    auto model = in_layout(from, 1);
    auto optimizer = std::make_shared<torch::optim::Adam>(model->parameters(), 0.1);
    train_step(model, *optimizer, random_input(4, 5));
    const auto expected = whole_parameters(*model);
    const std::shared_ptr<torch::nn::Module> as_module = model.ptr();
    const std::string id = shared_directory() + "/layout_" + std::to_string(from);
    checkpointer.save({{"model", as_module}, {"optimizer", stateful(optimizer, as_module)}}, id);
    for (int to = 0; to < 5; ++to) {
      CAPTURE(to);
      auto other = in_layout(to, 10 + static_cast<std::uint64_t>(from));
      auto other_optimizer = std::make_shared<torch::optim::Adam>(other->parameters(), 0.5);
      const std::shared_ptr<torch::nn::Module> other_module = other.ptr();
      StateDict state{{"model", other_module}, {"optimizer", stateful(other_optimizer, other_module)}};
      checkpointer.load(state, id);
      CHECK(largest_difference(whole_parameters(*other), expected) == 0);
      StateDictOptions whole;
      whole.full_state_dict = true;
      const Dict saved = get_optimizer_state_dict(*model, *optimizer, whole);
      const Dict loaded = get_optimizer_state_dict(*other, *other_optimizer, whole);
      for (const auto& [key, fields] : saved.at("state").dict())
        CHECK(fields["exp_avg"].tensor().equal(loaded.at("state")[key]["exp_avg"].tensor()));
    }
  }
}

namespace {

// The model of the checkpoints that PyTorch wrote.
struct FixtureNetImpl : torch::nn::Module {
  explicit FixtureNetImpl(const std::vector<std::int64_t>& sizes) : norm(sizes.back()) {
    for (std::size_t i = 0; i + 1 < sizes.size(); ++i) layers->push_back(torch::nn::Linear(sizes[i], sizes[i + 1]));
    register_module("layers", layers);
    register_module("norm", norm);
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& layer : *layers) x = torch::relu(layer->as<torch::nn::Linear>()->forward(x));
    return norm(x);
  }
  torch::nn::ModuleList layers;
  torch::nn::BatchNorm1d norm;
};

torch::Tensor tensor_of(const SafeTensor& safe) {
  return torch::from_blob(const_cast<char*>(safe.bytes.data()), array_of(safe.sizes),
                          torch::TensorOptions().dtype(*scalar_type_of(safe.dtype)))
      .clone()
      .to(rank_device());
}

}  // namespace

TEST_CASE("PyTorch's FSDP and HSDP checkpoints load into the same model sharded here, optimizer too") {
  const std::pair<const char*, std::vector<std::int64_t>> fixtures[] = {
      {"fsdp_even", {8, 16, 32, 64, 8}}, {"fsdp_uneven", {5, 10, 15, 30, 5}}, {"hsdp_2x2", {5, 8, 4, 12}}};
  for (const auto& [folder, sizes] : fixtures) {
    CAPTURE(folder);
    torch::manual_seed(3);
    ranks();
    auto model = here(Hooked<FixtureNetImpl>(sizes));
    FullyShardOptions options;
    options.wrap_policy = wrap_classes<torch::nn::LinearImpl>();
    fully_shard(model, ProcessMesh(ranks()), options);
    torch::optim::Adam optimizer(model->parameters(), 0.5);
    auto [of_model, of_optimizer] = get_state_dict(*model, optimizer);
    StateDict state{{"model", of_model}, {"optimizer", of_optimizer}};
    const std::string where = std::string(CAIRN_TEST_DATA) + "/pytorch-2.11/" + folder;
    Checkpointer(world(), std::string("fixture ") + folder).load(state, where);
    set_state_dict(*model, optimizer, state["model"].dict(), state["optimizer"].dict());

    StateDictOptions whole;
    whole.full_state_dict = true;
    const auto [whole_model, whole_optimizer] = get_state_dict(*model, optimizer, whole);
    std::size_t compared = 0;
    for (const auto& [name, safe] : read_safetensors(where + "/expected.safetensors")) {
      const torch::Tensor expected = tensor_of(safe);
      if (name.rfind("model.", 0) == 0) {
        CHECK(whole_model.at(name.substr(6)).tensor().equal(expected));
        ++compared;
      } else if (name.rfind("optimizer.state.", 0) == 0) {
        const std::string rest = name.substr(16);
        const std::size_t dot = rest.rfind('.');
        const Value& value = whole_optimizer.at("state")[rest.substr(0, dot)][rest.substr(dot + 1)];
        if (value.is_tensor()) {
          CHECK(value.tensor().equal(expected));
        } else {
          CHECK(value.to_int() == expected.item<std::int64_t>());
        }
        ++compared;
      }
    }
    CHECK(compared > 30);
    CHECK(whole_optimizer.at("param_groups").list()[0]["lr"].to_double() == 0.05);
    // The loaded model can be trained further.
    train_step(model, optimizer, random_input(8, sizes.front()));
  }
}

TEST_CASE("B3.2 a sharded model and its optimizer go through a URL; the optimizer has never stepped") {
  struct NetImpl : torch::nn::Module {
    NetImpl()
        : first(torch::nn::Linear(8, 16), torch::nn::ReLU()),
          second(torch::nn::Linear(16, 32), torch::nn::ReLU()),
          third(32, 64),
          fourth(torch::nn::ReLU(), torch::nn::Linear(64, 8)) {
      register_module("first", first);
      register_module("second", second);
      register_module("third", third);
      register_module("fourth", fourth);
    }
    torch::Tensor forward(const torch::Tensor& x) { return fourth->forward(third(second->forward(first->forward(x)))); }
    torch::nn::Sequential first, second;
    torch::nn::Linear third;
    torch::nn::Sequential fourth;
  };
  const auto wrapped = [](std::uint64_t seed) {
    torch::manual_seed(seed);
    ranks();
    auto model = here(Hooked<NetImpl>());
    FullyShardOptions options;
    options.wrap_policy = wrap_classes<torch::nn::SequentialImpl>();
    fully_shard(model, ProcessMesh(ranks()), options);
    return model;
  };
  auto model = wrapped(1), other = wrapped(2);
  torch::optim::Adam optimizer(model->parameters(), 0.1), fresh(other->parameters(), 0.5);
  train_step(model, optimizer, random_input(8, 8));
  const std::string url = "file://" + shared_directory() + "/by_url";
  Checkpointer checkpointer(world());
  checkpointer.save({{"model", get_model_state_dict(*model)}, {"optim", get_optimizer_state_dict(*model, optimizer)}}, url);
  CHECK(largest_difference(whole_parameters(*model), whole_parameters(*other)) > 0);

  CHECK(thrown_by([&] { load_sharded_optimizer_state_dict(checkpointer, url, "none", {}); }).code == ErrorCode::kNotFound);
  StateDict state{{"model", get_model_state_dict(*other)}};
  checkpointer.load(state, url);
  const Dict of_optimizer = load_sharded_optimizer_state_dict(checkpointer, url, "optim", state["model"].dict());
  CHECK(of_optimizer.at("state")["first.0.weight"]["exp_avg"].sharded().local_shards()[0].tensor.size(0) == 16 / world().size());
  set_optimizer_state_dict(*other, fresh, of_optimizer);

  CHECK(largest_difference(whole_parameters(*model), whole_parameters(*other)) == 0);
  StateDictOptions whole;
  whole.full_state_dict = true;
  const Dict expected = get_optimizer_state_dict(*model, optimizer, whole), found = get_optimizer_state_dict(*other, fresh, whole);
  for (const auto& [name, fields] : expected.at("state").dict()) {
    for (const char* field : {"exp_avg", "exp_avg_sq"})
      CHECK(fields[field].tensor().equal(found.at("state")[name][field].tensor()));
    CHECK(found.at("state")[name]["step"].to_int() == 1);
  }
  CHECK(found.at("param_groups").list()[0]["lr"].to_double() == 0.1);
}

TEST_CASE("B2.10 get_ and set_state_dict before any step, in place, with the first optimizer's learning rate") {
  torch::manual_seed(0);
  auto model = chain_of({8, 16, 8}, 0), other = chain_of({8, 16, 8}, 1);
  torch::optim::Adam optimizer(model->parameters(), 0.1), second(other->parameters(), 0.2);
  const auto [of_model, of_optimizer] = get_state_dict(*model, optimizer);
  const std::string id = shared_directory() + "/before_any_step";
  cairn::save({{"model", of_model}, {"optimizer", of_optimizer}}, id);

  auto [into_model, into_optimizer] = get_state_dict(*other, second);
  StateDict state{{"model", into_model}, {"optimizer", into_optimizer}};
  cairn::load(state, id);
  for (const auto& [name, value] : into_model) {  // in place: the same tensor objects
    CHECK((value.tensor().is_same(state["model"][name].tensor())));
    CHECK(value.tensor().equal(of_model.at(name).tensor()));
  }
  set_state_dict(*other, second, state["model"].dict(), state["optimizer"].dict());
  CHECK(static_cast<torch::optim::AdamOptions&>(second.param_groups()[0].options()).lr() == 0.1);
  const auto [read_model, read_optimizer] = get_state_dict(*other, second);
  for (const auto& [name, value] : read_model) CHECK(value.tensor().equal(state["model"][name].tensor()));
  for (const auto& [name, fields] : read_optimizer.at("state").dict()) {
    CHECK(fields["exp_avg"].tensor().equal(state["optimizer"]["state"][name]["exp_avg"].tensor()));
    CHECK(fields["step"].to_int() == 0);
  }
}
