// Training with sharded parameters, saved and loaded by rank processes.
#include <map>

#include <cairn/runtime/cairn.hpp>
#include <cairn/runtime/checkpoints/sharded_optimizer.hpp>
#include <cairn/runtime/testing/testing.hpp>
#include <cairn/state/script_module.hpp>
#include <cairn/state/tensor_types.hpp>
#include <cairn/storage/tiers.hpp>
#include <cairn/tests/support/chosen_place.hpp>
#include <cairn/tests/support/safetensors.hpp>
#include <cairn/tests/support/scripted.hpp>
#include <cairn/tests/support/thrown.hpp>
#include <cairn/tests/support/torch.hpp>
#include <cairn/tests/training/sharded_models.hpp>
#include <cairn/training/group_from_environment.hpp>
#include <cairn/training/parallelize.hpp>
#include <cairn/training/replicate.hpp>
#include <cairn/training/state_dicts.hpp>

using namespace cairn;
using namespace cairn::testing;
using namespace cairn::training;

namespace {

const ProcessGroup& ranks() {
  static const ProcessGroup group = [] {
    at::set_num_threads(1);
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

// kNoShard is fully_shard's, kReplicated is `replicate`: both keep whole parameters on every rank.
enum class Wrapper { kFull, kHybrid, kNoShard, kReplicated, kFullAndParallel };

template <class Model>
void wrap(Hooked<Model>& model, Wrapper wrapper, const std::string& name) {
  if (wrapper == Wrapper::kReplicated) return replicate(model, ranks());
  FullyShardOptions options;
  options.wrap_policy = wrap_classes<torch::nn::LinearImpl, ScriptModuleImpl>();
  if (wrapper == Wrapper::kNoShard) options.strategy = ShardingStrategy::kNoShard;
  if (wrapper == Wrapper::kFullAndParallel) {
    const ProcessMesh grid(ranks(), {2, 2}, {"dp", "tp"}, name);
    parallelize(*model, grid.along("tp"), {{"net1", ColwiseParallel{}}, {"net2", RowwiseParallel{}}});
    return fully_shard(model, grid.along("dp"), options);
  }
  const ProcessMesh mesh =
      wrapper == Wrapper::kHybrid ? ProcessMesh(ranks(), {2, 2}, {"replicas", "shards"}, name) : ProcessMesh(ranks());
  fully_shard(model, mesh, options);
}

// Pulls all outputs towards 1. Adam would bring their plain sum, after ReLUs, to 0 within three
// steps; then there are no gradients left, and equal losses prove nothing.
template <class Model>
double train_step(Model& model, torch::optim::Optimizer& optimizer, const torch::Tensor& input) {
  optimizer.zero_grad();
  const torch::Tensor loss = (model(input) - 1).square().sum();
  loss.backward();
  optimizer.step();
  return loss.template item<double>();
}

torch::Tensor random_input(std::int64_t rows, std::int64_t columns, std::uint64_t seed = 0) {
  torch::manual_seed(seed);
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

// Checks of each pair of tensors whether they are equal. Empty ones always are.
void check_equal(const std::map<std::string, torch::Tensor>& a, const std::map<std::string, torch::Tensor>& b, bool expected) {
  REQUIRE(a.size() == b.size());
  for (const auto& [name, tensor] : a) {
    const auto& shown = name;
    CAPTURE(shown);
    CHECK(tensor.equal(b.at(name)) == (expected || tensor.numel() == 0));
  }
}

void check_each_equal(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b, bool expected) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    CAPTURE(i);
    CHECK(a[i].equal(b[i]) == expected);
  }
}

// Returns the same sharded dict with memory of its own.
Dict deep_copy(const Dict& state_dict) {
  Dict copy;
  for (const auto& [name, value] : state_dict)
    copy.insert(name, value.sharded().with_local_tensors({value.sharded().local_shards().front().tensor.detach().clone()}));
  return copy;
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
  // Weight decay changes weights behind a dead ReLU, which have no gradient.
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(0.1).weight_decay(0.1));
  const std::string id = shared_directory() + (uneven ? "/hybrid_uneven" : "/hybrid_even");
  Checkpointer checkpointer(world());
  const Dict live = get_model_state_dict(*model), copy = deep_copy(live);
  CHECK(is_here(live));
  CHECK(is_here(copy));
  const auto saved = local_copies(live);
  SaveOptions save_options;
  save_options.planner = std::make_shared<DefaultSavePlanner>();
  checkpointer.save({{"model", copy}}, id, save_options);

  train_step(model, optimizer, random_input(4, 5));
  check_equal(saved, local_copies(get_model_state_dict(*model)), false);
  check_equal(saved, local_copies(copy), true);

  // Checked on both before the load, which must not be what makes them equal, and after it.
  const auto check_layout = [&copy](const Dict& found) {
    REQUIRE(found.size() == copy.size());
    for (const auto& [name, value] : found) {
      REQUIRE(value.is_sharded());
      const ShardedTensor& was = copy.at(name).sharded();
      CHECK((*value.sharded().mesh() == *was.mesh()));
      CHECK((value.sharded().placements() == was.placements()));
      CHECK((was.placements() == std::vector<Placement>{Replicate{}, Shard{0}}));
      CHECK((value.sharded().size() == was.size()));
    }
  };
  check_layout(get_model_state_dict(*model));
  for (const auto& [name, value] : copy) value.sharded().local_shards().front().tensor.zero_();
  StateDict state{{"model", copy}};
  LoadOptions load_options;
  load_options.planner = std::make_shared<DefaultLoadPlanner>();
  checkpointer.load(state, id, load_options);
  check_equal(saved, local_copies(copy), true);  // loaded in place
  check_equal(saved, local_copies(get_model_state_dict(*model)), false);
  set_model_state_dict(*model, state["model"].dict());
  const Dict loaded = get_model_state_dict(*model);
  check_equal(saved, local_copies(loaded), true);
  check_layout(loaded);
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
  const auto check_layouts_differ = [&] {
    const Dict from = get_model_state_dict(*hybrid), to = get_model_state_dict(*full);
    CHECK(is_here(from));
    CHECK(is_here(to));
    REQUIRE(from.size() == to.size());
    for (const auto& [name, value] : from) {
      const auto& shown = name;
      CAPTURE(shown);
      CHECK_FALSE((*value.sharded().mesh() == *to.at(name).sharded().mesh()));
      CHECK_FALSE((value.sharded().placements() == to.at(name).sharded().placements()));
    }
  };
  check_layouts_differ();
  check_each_equal(whole_parameters(*hybrid), whole_parameters(*full), false);

  StateDict state{{"model", get_model_state_dict(*full)}};
  checkpointer.load(state, id);
  check_each_equal(whole_parameters(*hybrid), whole_parameters(*full), true);
  check_layouts_differ();
}

namespace {

// A tensor that is saved through Stateful.
struct TestState : Stateful {
  explicit TestState(const torch::Tensor& values) : tensor(values) {}
  Dict state_dict() override { return {{"values", tensor}}; }
  void load_state_dict(const Dict& state_dict) override { tensor = state_dict.at("values").tensor(); }
  torch::Tensor tensor;
};

// Saves bytes through Stateful, beside tensors.
struct TrainState : Stateful {
  Dict state_dict() override { return {{"step", step}, {"loss", loss}, {"losses", Blob{Bytes(history.begin(), history.end())}}}; }
  void load_state_dict(const Dict& state_dict) override {
    const Bytes& bytes = state_dict.at("losses").blob().bytes;
    history.assign(bytes.begin(), bytes.end());
  }
  torch::Tensor step = torch::tensor(0, torch::kInt32), loss = torch::zeros({});
  std::string history;
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
  const auto parts = wrapper == Wrapper::kFull ? 4 : wrapper == Wrapper::kHybrid ? 2 : 0;  // 0: not checked
  if (parts > 0) CHECK(parts * memory_use(*model).shards == parameter_bytes(*plain));
  torch::optim::Adam plain_optimizer(plain->parameters(), 0.1);
  auto optimizer = std::make_shared<torch::optim::Adam>(model->parameters(), 0.1);
  const auto input_of = [](std::uint64_t step) { return random_input(8, 8, step); };
  CHECK(is_here(input_of(0)));
  double loss = 0;
  const auto train = std::make_shared<TrainState>();
  for (std::uint64_t step = 0; step < 2; ++step) {
    train_step(plain, plain_optimizer, input_of(step));
    loss = train_step(model, *optimizer, input_of(step));
    // During the step, units were gathered, and never more than the whole model.
    const MemoryUse used = memory_use(*model);
    CHECK(used.gathered == 0);
    if (parts > 0) {
      CHECK(used.gathered_peak > 0);
      CHECK(used.gathered_peak <= parameter_bytes(*plain));
      CHECK(parts * used.shards == parameter_bytes(*plain));
    }
    train->history += std::to_string(loss) + " ";
  }
  for (const Dict& part : {get_model_state_dict(*model), get_optimizer_state_dict(*model, *optimizer)}) CHECK(is_here(part));
  auto object = std::make_shared<TestState>(random_input(10, 10));
  train->step.fill_(2);
  train->loss.fill_(loss);
  const std::string id = shared_directory() + "/" + name;
  Checkpointer checkpointer(world());
  const std::shared_ptr<torch::nn::Module> as_module = model.ptr();
  const StateDict saved{{"model", as_module},
                        {"optimizer", stateful(optimizer, as_module)},
                        {"object", std::static_pointer_cast<Stateful>(object)},
                        {"train", std::static_pointer_cast<Stateful>(train)}};
  if (background) {
    const AsyncSaveResponse saving = checkpointer.async_save(saved, id, {}, *background);
    train_step(model, *optimizer, input_of(2));
    while (!saving.done()) saving.wait(std::chrono::milliseconds(1));
    saving.result();
  } else {
    checkpointer.save(saved, id);
  }

  auto fresh = make(sizes, 7);
  wrap(fresh, wrapper, name + "/second");
  auto fresh_optimizer = std::make_shared<torch::optim::Adam>(fresh->parameters(), 0.2);
  auto fresh_object = std::make_shared<TestState>(here(torch::zeros({10, 10})));
  auto fresh_train = std::make_shared<TrainState>();
  const std::shared_ptr<torch::nn::Module> fresh_module = fresh.ptr();
  StateDict state{{"model", fresh_module},
                  {"optimizer", stateful(fresh_optimizer, fresh_module)},
                  {"object", std::static_pointer_cast<Stateful>(fresh_object)},
                  {"train", std::static_pointer_cast<Stateful>(fresh_train)}};
  checkpointer.load(state, id);
  CHECK(fresh_object->tensor.equal(object->tensor));
  CHECK(fresh_train->step.item<int>() == 2);
  CHECK(fresh_train->loss.equal(train->loss));
  CHECK(fresh_train->history == train->history);

  // One more step gives the same loss on the plain model and on the loaded one.
  const double expected = train_step(plain, plain_optimizer, input_of(2));
  const double resumed = train_step(fresh, *fresh_optimizer, input_of(2));
  CHECK(expected > 0);
  CHECK(expected != loss);
  CHECK(std::abs(resumed - expected) <= tolerance * std::abs(expected));
  // The saved model gives the identical loss. With `background`, it has already made that step.
  if (!background) CHECK(train_step(model, *optimizer, input_of(2)) == resumed);
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
  CHECK(again.at("state").dict().size() == plain->parameters().size());
  for (const auto& [key, fields] : of_optimizer.at("state").dict()) {
    for (const char* field : {"exp_avg", "exp_avg_sq"}) CHECK(fields[field].tensor().equal(again.at("state")[key][field].tensor()));
    CHECK(again.at("state")[key]["step"].to_int() == 3);
  }
  CHECK(again.at("param_groups").list()[0]["lr"].to_double() == 0.1);
}

}  // namespace

TEST_CASE("B2.1 fully sharded, hybrid and replicated training state, end to end") {
  SUBCASE("fully sharded") { check_end_to_end(chain_of, Wrapper::kFull, "end_full"); }
  SUBCASE("hybrid") { check_end_to_end(chain_of, Wrapper::kHybrid, "end_hybrid"); }
  SUBCASE("replicated") { check_end_to_end(chain_of, Wrapper::kReplicated, "end_replicated"); }
}

TEST_CASE("B2.3 sharded, hybrid and replicated TorchScript modules, end to end") {
  const std::vector<std::int64_t> sizes{8, 16, 32};
  auto names = scripted_chain_of(sizes)->named_parameters().keys();
  CHECK((names == chain_of(sizes)->named_parameters().keys()));
  SUBCASE("fully sharded") { check_end_to_end(scripted_chain_of, Wrapper::kFull, "script_full"); }
  SUBCASE("hybrid") { check_end_to_end(scripted_chain_of, Wrapper::kHybrid, "script_hybrid"); }
  SUBCASE("whole on every rank") { check_end_to_end(scripted_chain_of, Wrapper::kNoShard, "script_whole"); }
  SUBCASE("replicated") { check_end_to_end(scripted_chain_of, Wrapper::kReplicated, "script_replicated"); }
}

TEST_CASE("B2.4 fully sharded training state, saved in the background, end to end") {
  AsyncSaveOptions background;
  SUBCASE("memory not being kept between saves") { background.staging.cache_staged_state_dict = false; }
  SUBCASE("memory being kept between saves") { background.staging.cache_staged_state_dict = true; }
  check_end_to_end(chain_of, Wrapper::kFull, background.staging.cache_staged_state_dict ? "end_async_kept" : "end_async", 0,
                   background);
}

TEST_CASE("B2.7 partial load of fully sharded training state") {
  const std::vector<std::int64_t> sizes{8, 16, 32, 64, 8};
  auto plain = chain_of(sizes), model = chain_of(sizes);
  wrap(model, Wrapper::kFull, "");
  torch::optim::Adam plain_optimizer(plain->parameters(), 0.1), optimizer(model->parameters(), 0.1);
  for (int i = 0; i < 2; ++i) {
    train_step(plain, plain_optimizer, random_input(8, 8));
    train_step(model, optimizer, random_input(8, 8));
  }
  const auto [of_model, of_optimizer] = get_state_dict(*model, optimizer);
  const auto [of_plain, of_plain_optimizer] = get_state_dict(*plain, plain_optimizer);
  const StateDict sharded{{"model", of_model}, {"optimizer", of_optimizer}};
  CHECK(is_here(sharded));
  for (const auto& [name, value] : of_model) CHECK(value.is_sharded());
  const std::string id = shared_directory() + "/partial_sharded";
  Checkpointer checkpointer(world());
  checkpointer.save(sharded, id);

  SUBCASE("the model alone") {
    bool as_object = false;
    SUBCASE("by its dict") { as_object = false; }
    SUBCASE("as an object") { as_object = true; }
    auto fresh = chain_of(sizes, 7);
    wrap(fresh, Wrapper::kFull, "");
    check_each_equal(whole_parameters(*fresh), whole_parameters(*plain), false);
    StateDict state{{"model", as_object ? Value(fresh) : Value(get_model_state_dict(*fresh))}};
    checkpointer.load(state, id);
    check_each_equal(whole_parameters(*fresh), whole_parameters(*plain), true);
  }
  SUBCASE("by key prefix, without a template: whole tensors on the CPU") {
    const StateDict by_model = checkpointer.load_by_keys(id, {"model"});
    CHECK(by_model.size() == 1);
    REQUIRE(by_model.at("model").dict().size() == of_plain.size());
    for (const auto& [name, value] : of_plain) {  // "net1.weight" stays one key
      CHECK(by_model.at("model")[name].tensor().is_cpu());
      CHECK(by_model.at("model")[name].tensor().equal(value.tensor().cpu()));
    }
    const StateDict by_state = checkpointer.load_by_keys(id, {"optimizer.state"});
    CHECK(by_state.size() == 1);
    CHECK(by_state.at("optimizer").dict().size() == 1);  // no param_groups
    const Dict& by_name = by_state.at("optimizer")["state"].dict();
    REQUIRE(by_name.size() == plain->parameters().size());
    for (const auto& [name, fields] : of_plain_optimizer.at("state").dict()) {
      const auto& shown = name;
      CAPTURE(shown);
      for (const char* field : {"exp_avg", "exp_avg_sq"}) {
        CHECK(by_name.at(name)[field].tensor().is_cpu());
        CHECK(by_name.at(name)[field].tensor().equal(fields[field].tensor().cpu()));
      }
      CHECK(by_name.at(name)["step"].to_int() == 2);
    }
  }
}

// Skipped on ranks without devices, where the case in async_save_test.cpp declares the backend.
TEST_CASE("B2.9 async_save is refused on every rank whose tensors go through NCCL alone" * doctest::skip(!ranks_use_cuda())) {
  const torch::Tensor sum = here(torch::ones({4}));
  ranks().all_reduce(sum);
  CHECK(sum.is_cuda());
  CHECK(sum.eq(world().size()).all().item<bool>());
  WorldOptions options;
  options.backends = "nccl";
  Checkpointer checkpointer(World::from_environment(options));
  const Thrown refused = thrown_by([&] { checkpointer.async_save({{"sum", sum}}, shared_directory() + "/refused_nccl"); });
  CHECK(refused.code == ErrorCode::kPrecondition);
  CHECK(refused.what.find("A CPU backend must be enabled for async save; ") == 0);

  // A synchronous save needs no such backend, and the group still works.
  checkpointer.save({{"sum", sum}}, shared_directory() + "/saved_nccl");
  StateDict state{{"sum", here(torch::zeros({4}))}};
  checkpointer.load(state, shared_directory() + "/saved_nccl");
  CHECK(state.at("sum").tensor().equal(sum));
  ranks().all_reduce(sum);
  CHECK(sum.eq(world().size() * world().size()).all().item<bool>());
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

TEST_CASE("B2.5 Stateful objects with collectives load in one order on all ranks") {
  ranks();
  const auto a = std::make_shared<Talks>(true), b = std::make_shared<Talks>(false);
  StateDict state;
  for (const bool first : {world().rank() == 0, world().rank() != 0})
    state.insert(first ? "A" : "B", std::static_pointer_cast<Stateful>(first ? a : b));
  Checkpointer checkpointer(world());
  checkpointer.save(state, shared_directory() + "/talking");
  checkpointer.load(state, shared_directory() + "/talking");
  for (const auto& talks : {a, b}) CHECK(is_here(talks->heard));  // on devices they were heard through NCCL
  CHECK(a->heard[-1].item<std::int64_t>() == world().size() - 1);
  CHECK(b->heard[0].item<std::int64_t>() == world().size() * (world().size() - 1) / 2);
}

TEST_CASE("B2.2 fully sharded training of parallel layers on a grid, end to end") {
  // Row-wise layers add in another order, and three Adam steps at 0.1 carry the differences on.
  // PyTorch's assertEqual allows as much.
  check_end_to_end(chain_of, Wrapper::kFullAndParallel, "end_parallel", 1e-5);
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

}  // namespace

TEST_CASE("PyTorch's FSDP and HSDP checkpoints load, with optimizer state") {
  const std::pair<const char*, std::vector<std::int64_t>> fixtures[] = {
      {"fsdp_even", {8, 16, 32, 64, 8}}, {"fsdp_uneven", {5, 10, 15, 30, 5}}, {"hsdp_2x2", {5, 8, 4, 12}}};
  for (const auto& [folder, sizes] : fixtures) {
    const auto& shown = folder;
    CAPTURE(shown);
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
      const torch::Tensor expected = here(tensor_of(safe));
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

TEST_CASE("B3.2 a sharded model and a fresh optimizer go through a URL") {
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
  const std::string url = chosen_place("file://" + shared_directory() + "/by_url");
  Checkpointer checkpointer(world());
  checkpointer.save({{"model", get_model_state_dict(*model)}, {"optim", get_optimizer_state_dict(*model, optimizer)}}, url);
  CHECK(wait_for_copies(url));
  check_each_equal(whole_parameters(*model), whole_parameters(*other), false);
  CHECK(is_here(get_optimizer_state_dict(*model, optimizer)));

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

TEST_CASE("B2.10 get_ and set_state_dict before any step, in place") {
  std::int64_t steps = 0;  // of the optimizer that is saved
  SUBCASE("before any step") { steps = 0; }
  SUBCASE("after one step") { steps = 1; }
  const std::vector<std::int64_t> sizes{8, 16, 32, 64, 8};
  auto model = chain_of(sizes, 0), other = chain_of(sizes, 1);
  using torch::optim::AdamOptions;
  // One group per layer.
  const auto groups_of = [](Hooked<Chain>& chain, const std::vector<AdamOptions>& options) {
    std::vector<torch::optim::OptimizerParamGroup> groups;
    for (std::size_t i = 0; i < options.size(); ++i)
      groups.emplace_back(chain->layers[i]->parameters(), std::make_unique<AdamOptions>(options[i]));
    return groups;
  };
  const std::vector<AdamOptions> saved{AdamOptions(0.1), AdamOptions(0.1).betas({0.8, 0.95}).eps(1e-6),
                                       AdamOptions(0.05).weight_decay(0.1), AdamOptions(0.1).amsgrad(true)};
  std::vector<AdamOptions> others(4, AdamOptions(0.2));
  others[3].amsgrad(true);
  torch::optim::Adam optimizer(groups_of(model, saved), 0.3), second(groups_of(other, others), 0.2);
  if (steps > 0) train_step(model, optimizer, random_input(8, 8));
  const auto [of_model, of_optimizer] = get_state_dict(*model, optimizer);
  const std::string id = shared_directory() + "/after_" + std::to_string(steps);
  cairn::save({{"model", of_model}, {"optimizer", of_optimizer}}, id);

  auto [into_model, into_optimizer] = get_state_dict(*other, second);
  StateDict state{{"model", into_model}, {"optimizer", into_optimizer}};
  CHECK(is_here(state));
  cairn::load(state, id);
  for (const auto& [name, value] : into_model) {  // in place: the same tensor objects
    CHECK((value.tensor().is_same(state["model"][name].tensor())));
    CHECK(value.tensor().equal(of_model.at(name).tensor()));
  }
  CHECK(into_optimizer.at("state").dict().size() == 8);
  for (const auto& [name, fields] : into_optimizer.at("state").dict()) {
    const auto& shown = name;
    CAPTURE(shown);
    for (const char* field : {"exp_avg", "exp_avg_sq"}) {
      const torch::Tensor& loaded = fields[field].tensor();
      CHECK(loaded.is_same(state["optimizer"]["state"][name][field].tensor()));
      CHECK(loaded.equal(of_optimizer.at("state")[name][field].tensor()));
      CHECK(loaded.any().item<bool>() == (steps > 0));
    }
    CHECK(state["optimizer"]["state"][name]["step"].to_int() == steps);
  }
  set_state_dict(*other, second, state["model"].dict(), state["optimizer"].dict());
  for (std::size_t i = 0; i < saved.size(); ++i)
    CHECK(static_cast<AdamOptions&>(second.param_groups()[i].options()) == saved[i]);
  const auto [read_model, read_optimizer] = get_state_dict(*other, second);
  for (const auto& [name, value] : read_model) CHECK(value.tensor().equal(state["model"][name].tensor()));
  CHECK(serialize_leaf(read_optimizer) == serialize_leaf(of_optimizer));  // all states, groups and options
}
