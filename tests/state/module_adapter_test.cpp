#include <cairn/base/error.hpp>
#include <cairn/state/adapters.hpp>
#include <cairn/state/script_module.hpp>
#include <cairn/tests/state/memory_checkpoint.hpp>
#include <cairn/tests/support/resized_storage.hpp>

using namespace cairn;
using namespace cairn::test;

namespace {

struct NetImpl : torch::nn::Module {
  NetImpl() {
    body = register_module("body", torch::nn::Linear(torch::nn::LinearOptions(4, 3).bias(false)));
    norm = register_module("norm", torch::nn::BatchNorm1d(3));
    scale = register_parameter("scale", torch::ones({2}));
    counter = register_buffer("counter", torch::zeros({1}, at::kLong));
    tied = register_parameter("tied", body->weight);
  }
  torch::nn::Linear body{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::Tensor scale, counter, tied;
};

std::vector<std::string> keys(const Dict& dict) {
  std::vector<std::string> result;
  for (const auto& [key, value] : dict) result.push_back(key);
  return result;
}

}  // namespace

TEST_CASE("a module's state dict is in PyTorch's order, with tied tensors under each name") {
  NetImpl net;
  const Dict dict = module_state_dict(net);
  CHECK(keys(dict) == std::vector<std::string>{"scale", "tied", "counter", "body.weight", "norm.weight", "norm.bias",
                                               "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"});
  CHECK(dict.at("tied").tensor().unsafeGetTensorImpl() == dict.at("body.weight").tensor().unsafeGetTensorImpl());
  CHECK(dict.at("scale").tensor().unsafeGetTensorImpl() == net.scale.unsafeGetTensorImpl());
}

TEST_CASE("a state dict that does not fit is refused as a whole") {
  NetImpl net;
  Dict dict = module_state_dict(net);
  Dict other;
  for (const auto& [key, value] : dict) other.insert(key, value.tensor().clone() + 1);
  other.erase("scale");
  other["norm.bias"] = torch::zeros(5);
  other["counter"] = 3;
  other["extra"] = torch::zeros(1);
  std::string text;
  CHECK(code_of([&] { load_module_state_dict(net, other); }, &text) == ErrorCode::kMismatch);
  CHECK(has(text, "\"scale\" is missing"));
  CHECK(has(text, "\"norm.bias\" is a tensor of size [5], the module has a tensor of size [3]"));
  CHECK(has(text, "\"counter\" is a whole number"));
  CHECK(has(text, "\"extra\" is not in the module"));
  CHECK(net.norm->weight.eq(1).all().item<bool>());
}

TEST_CASE("state dicts with tensors whose storage was freed are refused, as are such modules") {
  NetImpl net, other;
  for (const bool from_freed : {true, false}) {
    CAPTURE(from_freed);
    Dict dict = module_state_dict(other);
    if (from_freed)
      dict["norm.bias"] = cairn::testing::with_storage_of(torch::ones({3}), 8);
    else
      cairn::testing::with_storage_of(net.norm->bias, 0);
    dict["scale"] = torch::full({2}, 5.0f);
    std::string text;
    CHECK(code_of([&] { load_module_state_dict(net, dict); }, &text) == ErrorCode::kMismatch);
    CHECK(has(text, "\"norm.bias\" is a tensor of size [3]"));
    CHECK(has(text, from_freed ? "has a storage of 8 bytes" : "has a storage of 0 bytes"));
    CHECK(same(net.scale, torch::ones({2})));
  }
}

TEST_CASE("a module is a value of a state dict, loaded in place") {
  auto from = std::make_shared<NetImpl>();
  auto to = std::make_shared<NetImpl>();
  const Value object = std::static_pointer_cast<torch::nn::Module>(to);
  REQUIRE(object.is_stateful());
  const MemoryCheckpoint checkpoint = save({{{"model", module_state_dict(*from)}}});
  StateDict state{{"model", object.stateful()->state_dict()}};
  load(checkpoint, state);
  object.stateful()->load_state_dict(state["model"].dict());
  CHECK(to->body->weight.requires_grad());
  CHECK(same(to->body->weight, from->body->weight));
  CHECK(same(to->norm->running_var, from->norm->running_var));
}

TEST_CASE("declarations that do not fit are refused") {
  const torch::Tensor tensor = torch::zeros({2, 4});
  CHECK(code_of([&] { declare_shard(tensor, {{3, 0}, {2, 4}}, {4, 4}); }) == ErrorCode::kInvalidArgument);
  CHECK(code_of([&] { declare_shard(tensor, {{0, 0}, {1, 4}}, {4, 4}); }) == ErrorCode::kInvalidArgument);
  CHECK(code_of([&] { declare_shard(torch::Tensor(), {{0}, {1}}, {4}); }) == ErrorCode::kInvalidArgument);
  CHECK_FALSE(as_declared(tensor, tensor).is_sharded());
}

TEST_CASE("declared parameters are saved by their parts and loaded into other parts") {
  const torch::Tensor whole = counted({4, 4});
  std::vector<torch::nn::Linear> parts;
  std::vector<StateDict> saved;
  for (const int rank : {0, 1}) {
    parts.emplace_back(torch::nn::LinearOptions(4, 2).bias(false));
    parts.back()->weight.set_data(whole.slice(0, 2 * rank, 2 * rank + 2).clone());
    declare_shard(parts.back()->weight, {{2 * rank, 0}, {2, 4}}, {4, 4});
    saved.push_back({{"model", module_state_dict(*parts.back())}});
  }
  const MemoryCheckpoint checkpoint = save(saved);
  for (const int rank : {0, 1, 2}) {
    torch::nn::Linear third(torch::nn::LinearOptions(4, rank < 2 ? 2 : 0).bias(false));
    declare_shard(third->weight, {{2 * rank, 0}, {rank < 2 ? 2 : 0, 4}}, {4, 4});
    StateDict state{{"model", module_state_dict(*third)}};
    load(checkpoint, state, rank);
    load_module_state_dict(*third, state["model"].dict());
    CHECK(same(third->weight, whole.slice(0, 2 * rank, std::min(4, 2 * rank + 2))));
  }
  CHECK(code_of([&] { load_module_state_dict(*parts[0], saved[1]["model"].dict()); }) == ErrorCode::kMismatch);
}

TEST_CASE("a declaration ends with its tensor, and is never taken for that of another") {
  torch::Tensor kept = torch::zeros({2});
  declare_shard(kept, {{0}, {2}}, {4});
  for (int i = 0; i < 2000; ++i) {
    torch::Tensor passing = torch::zeros({2});
    CHECK_FALSE(as_declared(passing, passing).is_sharded());
    declare_shard(passing, {{2}, {2}}, {4});
    REQUIRE(as_declared(passing, passing).is_sharded());
  }
  for (int i = 0; i < 100; ++i) {
    const torch::Tensor another = torch::zeros({2});
    CHECK_FALSE(as_declared(another, another).is_sharded());
  }
  CHECK(as_declared(kept, kept).sharded().local_shards()[0].offsets == Extents{0});
  declare_shard(kept, {{2}, {2}}, {4});
  CHECK(as_declared(kept, kept).sharded().local_shards()[0].offsets == Extents{2});
  kept.set_data(torch::zeros({3}));
  CHECK(code_of([&] { as_declared(kept, kept); }) == ErrorCode::kMismatch);
}

TEST_CASE("script module: forward refuses a result that is not one tensor, run returns it") {
  torch::jit::Module pair("Pair");
  pair.define("def forward(self, x):\n  return x, x\n");
  ScriptModule module(pair);
  CHECK(thrown_by([&] { module->forward(torch::ones({1})); }).code == ErrorCode::kUnsupported);
  CHECK(module->run({torch::ones({1})}).isTuple());
  torch::jit::Module scaled("Scaled");
  scaled.define("def forward(self, x, factor: float):\n  return x * factor\n");
  CHECK(ScriptModule(scaled)(torch::ones({1}), std::vector<c10::IValue>{3.0}).item<float>() == 3);
}
