// States that other code made: tensors that share memory, whose storage was freed, or that autograd
// has saved.
#include <cairn/tests/support/torch.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <cairn/runtime/cairn.hpp>
#include <cairn/tests/support/in_process_world.hpp>
#include <cairn/tests/support/resized_storage.hpp>
#include <cairn/tests/support/sample_state.hpp>
#include <cairn/tests/support/temporary_directory.hpp>

namespace cairn::testing {
namespace {

std::string text_thrown_by(const std::function<void()>& call, ErrorCode code) {
  try {
    call();
  } catch (const CheckpointException& exception) {
    CHECK(exception.failures().begin()->second.code == code);
    return exception.what();
  }
  return "no exception";
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Returns its own tensors, of which two are one.
struct Tied : Stateful {
  Dict state_dict() override { return {{"embed", memory}, {"inner", Dict{{"heads", List{memory.t()}}}}}; }
  void load_state_dict(const Dict&) override {}
  torch::Tensor memory = torch::zeros({300, 400});
};

TEST_CASE("tied tensors load only if the checkpoint has equal values for them") {
  const TemporaryDirectory directory;
  const auto w = counting({300, 400}), other = counting({300, 400}, 1);
  const auto saved = [&](const torch::Tensor& head) {
    return StateDict{{"before", torch::ones({5})}, {"it", Dict{{"embed", w}, {"inner", Dict{{"heads", List{head.t()}}}}}}};
  };
  on_all_ranks(2, [&](World& world) {
    Checkpointer checkpointer(world);
    checkpointer.save(saved(w), directory.path() + "/equal");
    // Also if the tensors of rank 1 alone are tied: no rank changes a byte.
    for (const bool on_rank_1 : {false, true}) {
      CAPTURE(on_rank_1);
      checkpointer.save(saved(other), directory.path() + "/different");
      const auto object = std::make_shared<Tied>();
      const bool is_tied = !on_rank_1 || world.rank() == 1;
      const torch::Tensor before = torch::zeros({5}), embed = torch::zeros({300, 400}), head = torch::zeros({400, 300});
      StateDict state{{"before", before}};
      if (is_tied)
        state["it"] = std::shared_ptr<Stateful>(object);
      else
        state["it"] = Dict{{"embed", embed}, {"inner", Dict{{"heads", List{head}}}}};
      const std::string text =
          text_thrown_by([&] { checkpointer.load(state, directory.path() + "/different"); }, ErrorCode::kMismatch);
      CHECK(has(text, "\"it.embed\" and \"it.inner.heads.0\""));
      for (const torch::Tensor& tensor : {before, embed, head, object->memory}) CHECK_FALSE(tensor.any().item<bool>());
      checkpointer.load(state, directory.path() + "/equal");
      CHECK(before.eq(1).all().item<bool>());
      CHECK((is_tied ? object->memory : embed).equal(w));
    }
  });
}

TEST_CASE("a tied model from an untied run is a mismatch, not a damaged checkpoint") {
  const TemporaryDirectory directory;
  CheckpointManager manager(World::single(), directory.path() + "/run");
  manager.save(1, {{"embed", torch::ones({1 << 18})}, {"head", torch::ones({1 << 18})}});
  manager.save(2, {{"embed", torch::ones({1 << 18})}, {"head", torch::zeros({1 << 18})}});
  const torch::Tensor tied = torch::full({1 << 18}, 7.0f);
  StateDict state{{"embed", tied}, {"head", tied}};
  CHECK(has(text_thrown_by([&] { manager.restore_latest(state); }, ErrorCode::kMismatch), "\"embed\" and \"head\""));
  CHECK(tied.eq(7).all().item<bool>());
}

TEST_CASE("a tensor without its memory is refused by its key, wherever it is") {
  const TemporaryDirectory directory;
  const auto freed = [] { return with_storage_of(torch::ones({100}), 0); };
  const auto tuple = [](const torch::Tensor& tensor) { return c10::IValue(c10::ivalue::Tuple::create(tensor, 1)); };
  const auto halves = torch::ones({100}).split(50);
  with_storage_of(halves[0], 100);
  const auto part = torch::ones({100});
  ShardedTensor sharded({100}, DType::kFloat32, {{part, {0}}});
  with_storage_of(part, 0);
  const struct {
    const char* what;
    Value value;
  } cases[] = {
      {"freed", freed()},
      {"large", with_storage_of(torch::ones({1 << 20}), 0)},
      {"0-dim", with_storage_of(torch::ones({}), 0)},
      {"shrunk", with_storage_of(torch::ones({1 << 20}), 1000)},
      {"one element short", with_storage_of(torch::ones({100}), 396)},
      {"a view of a shrunk storage", with_storage_of(torch::ones({10, 10}).t(), 396)},
      {"conjugated", with_storage_of(torch::ones({100}, at::kComplexFloat).conj(), 8)},
      {"in a tuple", tuple(freed())},
      {"two views in a tuple", c10::IValue(c10::ivalue::Tuple::create(halves[0], halves[1]))},
      {"in a tuple in a list", List{tuple(freed())}},
      {"in a list", List{torch::ones({2}), freed()}},
      {"each rank's own", per_rank(freed())},
      {"a part", sharded},
      {"a part that had no memory before", ShardedTensor({100}, DType::kFloat32, {{freed(), {0}}})},
  };
  for (const auto& it : cases) {
    CAPTURE(it.what);
    const StateDict state{{"w", torch::ones({4})}, {"odd", it.value}};
    AsyncSaveOptions copied, streamed, overlapped;
    streamed.staging.stream = true;
    overlapped.staging.block_on_staging = false;
    const std::string id = directory.path() + "/step";
    const auto refused = [&](const char* how, const std::function<void()>& call) {
      CAPTURE(how);
      const std::string text = text_thrown_by(call, ErrorCode::kUnsupported);
      CHECK_MESSAGE((has(text, "odd") && has(text, "the storage was freed or shrunk")), text);
    };
    refused("save", [&] { save(state, id); });
    for (const AsyncSaveOptions& options : {copied, streamed, overlapped})
      refused("async_save", [&] { async_save(state, id, {}, options).result(); });
    Checkpointer(World::single()).prepare(state, copied);
    if (!it.value.is_tensor() && !it.value.is_sharded() && !it.value.is_list()) continue;
    if (it.value.is_list() && !it.value.list().back().is_tensor()) continue;
    StateDict whole = state;
    if (it.value.is_list())
      whole["odd"].list().back() = torch::ones({100});
    else if (it.value.is_tensor())
      whole["odd"] = with_marks_of(it.value, torch::ones(it.value.tensor().sizes(), it.value.tensor().options()));
    else
      whole["odd"] = torch::ones({100});
    save(whole, id);
    StateDict into = state;
    refused("load", [&] { load(into, id); });
  }
}

// Returns one tensor.
struct Holder : Stateful {
  explicit Holder(torch::Tensor held) : tensor(std::move(held)) {}
  Dict state_dict() override { return {{"inner", List{1, tensor}}}; }
  void load_state_dict(const Dict&) override {}
  torch::Tensor tensor;
};

TEST_CASE("tensors of a Stateful object that cannot be saved or filled are named") {
  const TemporaryDirectory directory;
  const auto of = [](const torch::Tensor& tensor) {
    return StateDict{{"w", torch::ones({4})}, {"it", std::static_pointer_cast<Stateful>(std::make_shared<Holder>(tensor))}};
  };
  save(of(torch::ones({100})), directory.path() + "/whole");
  const struct {
    const char* what;
    torch::Tensor tensor;
    bool is_saved;
  } cases[] = {
      {"sparse", torch::ones({100}).to_sparse(), false},
      {"quantized", torch::quantize_per_tensor(torch::ones({100}), 0.1, 0, torch::kQInt8), false},
      {"meta", torch::empty({100}, torch::kMeta), false},
      {"storage", with_storage_of(torch::ones({100}), 0), false},
      {"share memory", torch::ones({1}).expand({100}), true},
  };
  for (const auto& it : cases) {
    CAPTURE(it.what);
    const std::string id = directory.path() + "/step";
    const std::string saved = text_thrown_by([&] { save(of(it.tensor), id); }, ErrorCode::kUnsupported);
    CHECK_MESSAGE((it.is_saved || (has(saved, "inner") && has(saved, it.what))), saved);
    StateDict into = of(it.tensor);
    const std::string loaded = text_thrown_by([&] { load(into, directory.path() + "/whole"); }, ErrorCode::kUnsupported);
    CHECK_MESSAGE((has(loaded, "\"it.inner.1\"") && has(loaded, it.what) && has(loaded, "nothing was changed")), loaded);
  }
  // Nothing is read from, or written to, a freed storage of no elements.
  save(of(with_storage_of(torch::ones({0, 3}), 0)), directory.path() + "/empty");
  StateDict into = of(with_storage_of(torch::ones({0, 3}), 0));
  load(into, directory.path() + "/empty");
}

TEST_CASE("tensors in a tuple that share memory are each saved with their own values") {
  const TemporaryDirectory directory;
  const auto base = counting({8});
  const auto list = c10::impl::GenericList(c10::AnyType::get());
  list.push_back(base.narrow(0, 4, 4));
  list.push_back(base.view(torch::kInt));
  const StateDict state{{"t", c10::IValue(c10::ivalue::Tuple::create({base.narrow(0, 0, 2), base.narrow(0, 2, 2), list}))}};
  AsyncSaveOptions copied, streamed;
  streamed.staging.stream = true;
  for (const AsyncSaveOptions& options : {copied, streamed}) {
    async_save(state, directory.path() + "/step", {}, options).result();
    const StateDict loaded = load_by_keys(directory.path() + "/step");
    const auto& elements = loaded.at("t").ivalue().toTupleRef().elements();
    CHECK(elements[0].toTensor().equal(counting({2})));
    CHECK(elements[1].toTensor().equal(counting({2}, 2)));
    CHECK(elements[2].toListRef()[0].toTensor().equal(counting({4}, 4)));
    CHECK(elements[2].toListRef()[1].toTensor().equal(base.view(torch::kInt)));
  }
}

TEST_CASE("a load increments the versions of the tensors that it fills") {
  const TemporaryDirectory directory;
  const std::string id = directory.path() + "/step";
  const StateDict saved{{"w", torch::full({4, 4}, 5.0f)}};
  save(saved, id);
  LoadOptions casts;
  casts.planning.allow_dtype_cast = true;
  LoadOptions first;
  first.reader.verify_first = true;
  const auto options = [](at::ScalarType type) { return torch::TensorOptions(type).requires_grad(true); };
  const auto module = torch::nn::Linear(torch::nn::LinearOptions(4, 4).bias(false));
  const auto leaf = torch::ones({4, 4}, options(torch::kFloat)), wide = torch::ones({4, 4}, options(torch::kDouble));
  const auto shard = torch::ones({4, 4}, options(torch::kFloat)), tied = torch::ones({4, 4}, options(torch::kFloat));
  const auto kept = torch::ones({4, 4}, options(torch::kFloat));
  save({{"m", module}}, id + "_m");
  save({{"a", saved.at("w")}, {"b", saved.at("w")}}, id + "_t");
  struct Case {
    const char* what;
    torch::Tensor parameter;
    StateDict state;
    LoadOptions options = {};
    std::string place = "";
  };
  const std::vector<Case> cases{{"directly", leaf, {{"w", leaf}}},
                                {"verified first", leaf, {{"w", leaf}}, first},
                                {"another layout", leaf, {{"w", leaf.t()}}},
                                {"a detached view", leaf, {{"w", leaf.detach()}}},
                                {"with a cast", wide, {{"w", wide}}, casts},
                                {"a part", shard, {{"w", ShardedTensor({4, 4}, DType::kFloat32, {{shard, {0, 0}}})}}},
                                {"a module", module->weight, {{"m", module}}, {}, "_m"},
                                {"tied", tied, {{"a", tied}, {"b", tied}}, {}, "_t"}};
  for (const Case& it : cases) {
    CAPTURE(it.what);
    const auto loss = (it.parameter * it.parameter).sum();
    const auto before = it.parameter._version();
    StateDict state = it.state;
    load(state, id + it.place, it.options);
    CHECK(it.parameter._version() > before);
    CHECK_THROWS_WITH_AS(loss.backward(), doctest::Contains("modified by an inplace operation"), c10::Error);
  }
  LoadOptions partial;
  partial.planning.allow_partial_load = true;
  StateDict state{{"w", leaf}, {"kept", kept}};
  const auto loss = (kept * kept).sum();
  load(state, id, partial);
  CHECK(kept._version() == 0);
  loss.backward();
}

}  // namespace
}  // namespace cairn::testing
