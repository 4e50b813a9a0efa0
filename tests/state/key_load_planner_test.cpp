#include <cairn/base/error.hpp>
#include <cairn/tests/state/memory_checkpoint.hpp>

using namespace cairn;
using namespace cairn::test;

namespace {

MemoryCheckpoint training_checkpoint() {
  std::vector<StateDict> ranks;
  for (int rank : {0, 1}) {
    const auto part = [&](at::IntArrayRef size) { return Value(ShardedTensor::distribute(counted(size), {0, {0, 1}}, rank)); };
    ranks.push_back({{"model", Dict{{"net1.weight", part({5, 2})}, {"net1.bias", counted({2})}}},
                     {"optimizer", Dict{{"state", Dict{{"net1.weight", Dict{{"step", 3}, {"exp_avg", part({5, 2})}}}}},
                                        {"param_groups", List{Dict{{"params", List{"net1.weight"}}, {"lr", 0.5}}}}}},
                     {"rng", per_rank(rank)}});
  }
  return save(ranks);
}

StateDict load_keys(const MemoryCheckpoint& checkpoint, std::vector<std::string> prefixes) {
  StateDict state;
  load(checkpoint, state, 0, *make_key_load_planner(std::move(prefixes)));
  return state;
}

}  // namespace

TEST_CASE("an unknown prefix names the closest keys") {
  const MemoryCheckpoint checkpoint = training_checkpoint();
  std::string text;
  CHECK(code_of([&] { load_keys(checkpoint, {"model", "optimiser.state", "x"}); }, &text) == ErrorCode::kNotFound);
  CHECK(has(text, "\"optimiser.state\": the closest are \"optimizer.state\""));
  CHECK(has(text, "\"x\""));
  CHECK(thrown_by([&] { load_keys(checkpoint, {"model.net1.weigh"}); }) == Saying{ErrorCode::kNotFound, "\"model.net1.weight\""});
  CHECK(thrown_by([&] { load_keys({}, {"model"}); }) == Saying{ErrorCode::kNotFound, "the checkpoint is empty"});
}

TEST_CASE("a state dict that is not empty is refused") {
  const MemoryCheckpoint checkpoint = training_checkpoint();
  StateDict state{{"model", 1}};
  CHECK(code_of([&] { load(checkpoint, state, 0, *make_key_load_planner({"model"})); }) == ErrorCode::kInvalidArgument);
  CHECK(code_of([] { make_key_load_planner({})->create_local_plan(); }) == ErrorCode::kPrecondition);
}

TEST_CASE("a prefix ends at a dot") {
  const MemoryCheckpoint checkpoint = save({{{"model", 1}, {"model2", 2}, {"model.x", 3}}});
  const StateDict state = load_keys(checkpoint, {"model"});
  CHECK(state.contains("model"));
  CHECK(state.contains("model.x"));
  CHECK_FALSE(state.contains("model2"));
}

TEST_CASE("without paths in the metadata, names stay whole") {
  MemoryCheckpoint checkpoint = training_checkpoint();
  checkpoint.metadata.planner_data.clear();
  const StateDict state = load_keys(checkpoint, {"model"});
  CHECK(same(state.at("model.net1.weight").tensor(), counted({5, 2})));
}

TEST_CASE("metadata that cannot be held is refused before anything is read") {
  MemoryCheckpoint checkpoint = training_checkpoint();
#if TORCH_VERSION_MAJOR < 2
  std::get<TensorStorageMetadata>(checkpoint.metadata.state_dict_metadata[0].second).properties.dtype = DType::kFloat8E4M3Fn;
  CHECK(thrown_by([&] { load_keys(checkpoint, {"model"}); }) == Saying{ErrorCode::kUnsupported, "float8_e4m3fn"});
#endif
  MemoryCheckpoint huge = training_checkpoint();
  std::get<TensorStorageMetadata>(huge.metadata.state_dict_metadata[0].second).size = {std::int64_t{1} << 55, 1};
  CHECK(thrown_by([&] { load_keys(huge, {"model"}); }) == Saying{ErrorCode::kUnavailable, "\"model.net1.weight\""});
  std::get<TensorStorageMetadata>(huge.metadata.state_dict_metadata[0].second).size = {std::int64_t{1} << 40,
                                                                                       std::int64_t{1} << 40};
  CHECK(code_of([&] { load_keys(huge, {"model"}); }) == ErrorCode::kInvalidArgument);
}

TEST_CASE("paths that would make lists of nothing are refused before they fill the memory") {
  MemoryCheckpoint checkpoint = save({{{"a", List{counted({2}), counted({3})}}, {"b", counted({2})}}});
  StateDict state = load_keys(checkpoint, {});
  CHECK(state["a"].list().size() == 2);
  checkpoint.metadata.planner_data[1].second = {"a", std::int64_t{4000}};  // a gap, as PyTorch leaves where it drops empty dicts
  state = load_keys(checkpoint, {});
  CHECK(state["a"].list().size() == 4001);
  checkpoint.metadata.planner_data[1].second = {"a", std::int64_t{4000}, std::int64_t{4000}};
  CHECK(thrown_by([&] { load_keys(checkpoint, {}); }) == Saying{ErrorCode::kUnsupported, R"(["a"][4000][4000])"});
}

TEST_CASE("two names at one place are refused") {
  MemoryCheckpoint checkpoint = save({{{"a", counted({2})}, {"b", counted({2})}}});
  checkpoint.metadata.planner_data[1].second = {"a"};
  CHECK(code_of([&] { load_keys(checkpoint, {}); }) == ErrorCode::kMismatch);
}
