#include <algorithm>

#include <cairn/base/error.hpp>
#include <cairn/formats/torch_archive.hpp>
#include <cairn/tests/state/memory_checkpoint.hpp>
#include <cairn/tests/support/thrown.hpp>

using namespace cairn;
using namespace cairn::test;

namespace {

LoadPlannerOptions partial() {
  LoadPlannerOptions options;
  options.allow_partial_load = true;
  return options;
}

Metadata metadata_of(std::vector<std::pair<std::string, Metadata::Entry>> entries) {
  Metadata metadata;
  metadata.state_dict_metadata = std::move(entries);
  return metadata;
}

ErrorCode plan_code(const Metadata& metadata, StateDict& state, std::string* text = nullptr, LoadPlannerOptions options = {}) {
  return code_of(
      [&] {
        DefaultLoadPlanner planner(options);
        planner.set_up_planner(state, metadata, 0, true);
        planner.create_local_plan();
      },
      text);
}

TensorStorageMetadata stored(const Extents& size, std::vector<Box> chunks, DType dtype = DType::kFloat32) {
  TensorStorageMetadata entry;
  entry.properties.dtype = dtype;
  entry.size = size;
  entry.chunks = std::move(chunks);
  return entry;
}

}  // namespace

TEST_CASE("everything that is wrong is told at once, and nothing was changed") {
  Metadata metadata = metadata_of({{"shape", stored({2, 2}, {Box::whole({2, 2})})},
                                   {"type", stored({2}, {Box::whole({2})}, DType::kFloat64)},
                                   {"bytes", BytesStorageMetadata{}},
                                   {"tensor", stored({2}, {Box::whole({2})})},
                                   {"gap", stored({4}, {{{0}, {1}}, {{2}, {2}}})},
                                   {"overlap", stored({4}, {{{0}, {3}}, {{2}, {2}}})},
                                   {"future", stored({2}, {Box::whole({2})}, DType::kFloat8E5M2FnUz)},
                                   {"target", stored({2}, {Box::whole({2})})},
                                   {"fine", stored({2}, {Box::whole({2})})}});
  StateDict state{{"shape", torch::zeros({2, 3})},
                  {"type", torch::zeros(2)},
                  {"bytes", torch::zeros(2)},
                  {"tensor", "text"},
                  {"gap", torch::zeros(4)},
                  {"overlap", torch::zeros(4)},
                  {"future", torch::zeros(2)},
                  {"absent", Dict{{"key", 1}}},
                  {"target", torch::zeros({1}).expand({2})},
                  {"fine", torch::zeros(2)}};
  std::string text;
  CHECK(plan_code(metadata, state, &text) == ErrorCode::kMismatch);
  CHECK(has(text, "nothing was changed"));
  CHECK(has(text, "\"shape\": the checkpoint has the size [2, 2], the state dict [2, 3]"));
  CHECK(has(text, "\"type\": the checkpoint has the type float64, the state dict float32"));
  CHECK(has(text, "\"bytes\": the checkpoint holds a value, the state dict a tensor"));
  CHECK(has(text, "\"tensor\": the checkpoint holds a tensor of size [2], the state dict a text"));
  CHECK(has(text, "\"gap\": the checkpoint holds only 3 of the 4 elements"));
  CHECK(has(text, "\"overlap\": the checkpoint is damaged"));
  CHECK(has(text, "\"target\": the tensor to fill has elements that share memory"));
  CHECK(has(text, "\"absent.key\""));
  CHECK(has(text, "allow_partial_load"));
  CHECK_FALSE(has(text, "\"fine\":"));
#if TORCH_VERSION_MAJOR < 2
  CHECK(has(text, "\"future\": it is stored as float8_e5m2fnuz, which this LibTorch"));
#endif
}

TEST_CASE("the code of an error tells what kind of fault is alone") {
  Metadata metadata = metadata_of({{"w", stored({2}, {Box::whole({2})})}, {"s", stored({2}, {Box::whole({2})})}});
  StateDict missing{{"w", torch::zeros(2)}, {"x", torch::zeros(2)}, {"y", 1}};
  std::string text;
  CHECK(plan_code(metadata, missing, &text) == ErrorCode::kNotFound);
  CHECK(has(text, "\"x\""));
  CHECK(has(text, "\"y\""));
  CHECK(plan_code(metadata, missing, nullptr, partial()) == ErrorCode{});
  StateDict sparse{{"s", torch::zeros({2}).to_sparse()}};
  CHECK(plan_code(metadata, sparse) == ErrorCode::kUnsupported);
  StateDict both{{"s", torch::zeros({2}).to_sparse()}, {"y", 1}};
  CHECK(plan_code(metadata, both) == ErrorCode::kMismatch);
  CHECK(code_of([] { DefaultLoadPlanner().create_local_plan(); }) == ErrorCode::kPrecondition);
}

TEST_CASE("the first missing names come with the closest names of the checkpoint") {
  const MemoryCheckpoint checkpoint = save({{{"layer", Dict{{"weight", counted({2})}, {"bias", counted({2})}}}}});
  StateDict state;
  for (const char* name : {"wieght", "a", "b", "bais"}) state["layer"][name] = torch::zeros(2);
  std::string text;
  CHECK(code_of([&] { load(checkpoint, state); }, &text) == ErrorCode::kNotFound);
  CHECK(has(text, "\"layer.wieght\": the closest are \"layer.weight\", \"layer.bias\"\n"));
  CHECK(has(text, "\"layer.bais\"\n"));  // the fourth
}

TEST_CASE("a gap matters only where this rank needs the elements") {
  const Metadata metadata = metadata_of({{"w", stored({4, 2}, {{{0, 0}, {2, 2}}})}});
  StateDict upper{{"w", ShardedTensor({4, 2}, DType::kFloat32, {{torch::zeros({2, 2}), {0, 0}}})}};
  StateDict lower{{"w", ShardedTensor({4, 2}, DType::kFloat32, {{torch::zeros({2, 2}), {2, 0}}})}};
  StateDict nothing{{"w", ShardedTensor({4, 2}, DType::kFloat32, {})}};
  CHECK(plan_code(metadata, upper) == ErrorCode{});
  CHECK(plan_code(metadata, lower) == ErrorCode::kMismatch);
  CHECK(plan_code(metadata, nothing) == ErrorCode{});
}

TEST_CASE("tensors are filled in place, whatever their layout") {
  const torch::Tensor matrix = counted({4, 3});
  const torch::Tensor complex = counted({4, 3}, at::kComplexFloat);
  const MemoryCheckpoint checkpoint = save({{{"plain", matrix},
                                             {"leaf", matrix},
                                             {"transposed", matrix},
                                             {"column", counted({4})},
                                             {"scalar", torch::tensor(7.5)},
                                             {"empty", torch::zeros({0, 3})},
                                             {"conj", complex},
                                             {"negative", counted({4})},
                                             {"inference", matrix}}});
  const torch::Tensor base = torch::zeros({4, 3});
  const torch::Tensor complex_base = torch::zeros({4, 3}, at::kComplexFloat);
  const torch::Tensor imaginary = torch::imag(torch::zeros({4}, at::kComplexFloat).conj());
  torch::Tensor inference;
  {
    const c10::InferenceMode guard;
    inference = torch::zeros({3, 4}).t();
  }
  StateDict state{{"plain", torch::zeros({4, 3})},
                  {"leaf", torch::zeros({4, 3}, torch::requires_grad())},
                  {"transposed", torch::zeros({3, 4}).t()},
                  {"column", base.select(1, 1)},
                  {"scalar", torch::tensor(0.0)},
                  {"empty", torch::ones({0, 3})},
                  {"conj", complex_base.conj()},
                  {"negative", imaginary},
                  {"inference", inference}};
  const StateDict before = state;
  load(checkpoint, state);
  for (const auto& [name, value] : state) {
    const auto& shown = name;
    CAPTURE(shown);
    CHECK(value.tensor().unsafeGetTensorImpl() == before.at(name).tensor().unsafeGetTensorImpl());
  }
  for (const char* name : {"plain", "leaf", "transposed", "inference"}) CHECK(same(state[name].tensor(), matrix));
  CHECK(same(base, torch::stack({torch::zeros(4), counted({4}), torch::zeros(4)}, 1)));
  CHECK(state["scalar"].tensor().item<float>() == 7.5f);
  CHECK(same(state["conj"].tensor(), complex));
  CHECK(same(complex_base, complex.conj()));
  CHECK(same(imaginary, counted({4})));
  CHECK(state["leaf"].tensor().requires_grad());
  CHECK(state["leaf"].tensor().is_leaf());
}

TEST_CASE("types are converted when asked for, but never from complex to real") {
  const MemoryCheckpoint checkpoint = save({{{"w", counted({3})}, {"c", counted({3}, at::kComplexFloat)}}});
  for (const auto type : {at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kComplexDouble}) {
    StateDict state{{"w", torch::zeros({3}, type)}};
    CHECK(code_of([&] { load(checkpoint, state); }) == ErrorCode::kMismatch);
    load(checkpoint, state, 0, casting());
    CHECK(same(state["w"].tensor(), counted({3}).to(type)));
  }
  StateDict real{{"c", torch::zeros({3})}};
  CHECK(code_of([&] { load(checkpoint, real, 0, casting()); }) == ErrorCode::kMismatch);
}

TEST_CASE("a list of plain values comes back as the kind that the caller has in its place") {
  const auto ints = [](std::vector<std::int64_t> values) { return Value(c10::IValue(c10::List<std::int64_t>(values))); };
  const StateDict saved{{"list", List{1, "two", 3.0}},
                        {"nested", List{List{1, 2}, List{}, List{3}}},
                        {"blobs", List{Blob{"b"}, List{4}}},
                        {"ivalue", ints({1, 2, 3})},
                        {"emptied list", List{}},
                        {"emptied ivalue", ints({})},
                        {"into ivalue", List{7, 8}},
                        {"into list", ints({7, 8})},
                        {"grown", List{List{1}, List{2}, List{3}}},
                        {"of ivalues", List{ints({1}), ints({2})}},
                        {"fresh", List{5}}};
  const MemoryCheckpoint checkpoint = save({saved});
  StateDict state{{"list", List{0, "", 0.0}},
                  {"nested", List{List{}, List{}, List{}}},
                  {"blobs", List{Blob{}, List{}}},
                  {"ivalue", ints({})},
                  {"emptied list", List{1}},
                  {"emptied ivalue", ints({1})},
                  {"into ivalue", ints({0})},
                  {"into list", List{}},
                  {"grown", List{List{9}}},
                  {"of ivalues", List{ints({0})}},
                  {"fresh", Value()}};
  load(checkpoint, state);
  CHECK(state["list"].list().at(0).to_int() == 1);
  CHECK(state["list"].list().at(1).to_text() == "two");
  CHECK(state["list"].list().at(2).to_double() == 3.0);
  CHECK(state["nested"].list().at(0).list().at(1).to_int() == 2);
  CHECK(state["nested"].list().at(1).list().empty());
  CHECK(state["nested"].list().at(2).list().at(0).to_int() == 3);
  CHECK(state["blobs"].list().at(0).blob().bytes == "b");
  CHECK(state["blobs"].list().at(1).list().at(0).to_int() == 4);
  CHECK(state["ivalue"].ivalue().toIntVector() == std::vector<std::int64_t>{1, 2, 3});
  CHECK(state["emptied list"].list().empty());
  CHECK(state["emptied ivalue"].ivalue().toIntVector().empty());
  CHECK(state["into ivalue"].ivalue().toIntVector() == std::vector<std::int64_t>{7, 8});
  CHECK(state["into list"].list().at(1).to_int() == 8);
  CHECK(state["grown"].list().at(2).list().at(0).to_int() == 3);
  CHECK(state["of ivalues"].list().at(1).ivalue().toIntVector() == std::vector<std::int64_t>{2});
  CHECK(state["fresh"].ivalue().isList());  // the default, without another hint
}

TEST_CASE("a number may be stored as a 0-dim tensor, as PyTorch's steps are") {
  const MemoryCheckpoint checkpoint = save({{{"step", torch::tensor(41.0f)},
                                             {"count", torch::tensor(std::int64_t{1} << 60, at::kLong)},
                                             {"lr", torch::tensor(0.5f)},
                                             {"half", torch::tensor(2.5f)},
                                             {"flag", torch::tensor(true)},
                                             {"vector", torch::zeros(1)},
                                             {"complex", counted({}, at::kComplexFloat)}}});
  StateDict state{{"step", 0}, {"count", 0}, {"lr", 0.0}, {"half", 0}, {"flag", false}};
  load(checkpoint, state);
  CHECK(state["step"].to_int() == 41);
  CHECK(state["count"].to_int() == std::int64_t{1} << 60);
  CHECK(state["lr"].to_double() == 0.5);
  CHECK(state["half"].ivalue().toDouble() == 2.5);
  CHECK(state["flag"].to_bool());
  StateDict vector{{"vector", 0}};
  StateDict complex{{"complex", 0}};
  CHECK(code_of([&] { load(checkpoint, vector); }) == ErrorCode::kMismatch);
  CHECK(code_of([&] { load(checkpoint, complex); }) == ErrorCode::kMismatch);
}

TEST_CASE("a checkpoint of PyTorch before 2.4 holds containers without tensors whole") {
  MemoryCheckpoint checkpoint;
  checkpoint.metadata = metadata_of({{"opt.param_groups", BytesStorageMetadata{}}, {"lr", BytesStorageMetadata{}}});
  checkpoint.objects["opt.param_groups"] = serialize_leaf(List{Dict{{"lr", 0.5}, {"params", List{0}}}});
  checkpoint.objects["lr"] = serialize_leaf(0.1);
  StateDict state{{"opt", Dict{{"param_groups", List{Dict{{"lr", 0.0}, {"params", List{}}}}}}}, {"lr", 0.0}};
  load(checkpoint, state);
  CHECK(state["opt"]["param_groups"].list()[0]["lr"].to_double() == 0.5);
  CHECK(state["lr"].to_double() == 0.1);

  StateDict tensor{{"opt", Dict{{"param_groups", List{Dict{{"lr", torch::zeros(2)}}}}}}};
  CHECK(code_of([&] { load(checkpoint, tensor); }) == ErrorCode::kMismatch);
  // Cairn's own checkpoints never store a list this way, so the key is missing.
  checkpoint.metadata.commit.emplace();
  StateDict again{{"opt", Dict{{"param_groups", List{Dict{{"lr", 0.0}, {"params", List{}}}}}}}};
  CHECK(code_of([&] { load(checkpoint, again); }) == ErrorCode::kNotFound);
}

TEST_CASE("a value marked by if_stored is loaded if it is stored, and kept otherwise") {
  const auto state_with = [](double number, int of_rank) {
    return StateDict{{"old", torch::full({2}, number)},
                     {"new", if_stored(Dict{{"weight", torch::full({3}, number)}, {"list", List{Dict{{"x", number}}}}})},
                     {"rank", if_stored(per_rank(of_rank))}};
  };
  const MemoryCheckpoint whole = save({state_with(7, 70), state_with(7, 71)});
  CHECK(whole.metadata.find("rank.rank_1") != nullptr);
  StateDict state = state_with(-1, -1);
  load(whole, state, 1);
  CHECK(same(state["new"]["weight"].tensor(), torch::full({3}, 7.0)));
  CHECK(state["new"]["list"].list()[0]["x"].to_double() == 7);
  CHECK(state["rank"].to_int() == 71);
  CHECK(state["new"].is_if_stored());
  CHECK(state["rank"].is_if_stored());
  CHECK(state["rank"].is_per_rank());

  const Dict part{{"weight", torch::full({3}, 5.0)}};
  const MemoryCheckpoint older = save({StateDict{{"old", torch::full({2}, 5.0)}, {"new", part}}});
  state = state_with(-1, -1);
  load(older, state);
  CHECK(same(state["old"].tensor(), torch::full({2}, 5.0)));
  CHECK(same(state["new"]["weight"].tensor(), torch::full({3}, 5.0)));
  CHECK(state["new"]["list"].list()[0]["x"].to_double() == -1);
  CHECK(state["rank"].to_int() == -1);

  // A value that is stored has to fit, and one that is not marked has to be there.
  StateDict other{{"older", 1}, {"new", if_stored(Dict{{"weight", torch::zeros(4)}, {"x", 1}})}};
  std::string text;
  CHECK(plan_code(older.metadata, other, &text) == ErrorCode::kMismatch);
  CHECK(has(text, "\"older\""));
  CHECK(has(text, "\"new.weight\""));
  CHECK_FALSE(has(text, "\"new.x\""));
}

TEST_CASE("values of absent ranks are reported, or refused before anything changes") {
  using Names = std::vector<std::string>;
  std::vector<StateDict> saved;
  for (int rank = 0; rank < 4; ++rank) saved.push_back({{"loader", per_rank(Dict{{"at", rank}})}, {"w", counted({2})}});
  const MemoryCheckpoint checkpoint = save(saved);
  for (const int world_size : {0, 2, 4}) {
    LoadPlannerOptions options;
    options.world_size = world_size;
    options.refuse_absent_ranks = world_size == 4;
    StateDict state{{"loader", per_rank(Dict{{"at", -1}})}, {"w", torch::zeros(2)}};
    DefaultLoadPlanner planner(options);
    load(checkpoint, state, 1, planner);
    CHECK(state["loader"]["at"].to_int() == 1);
    CHECK(planner.report().unexpected == (world_size == 2 ? Names{"loader.at.rank_2", "loader.at.rank_3"} : Names{}));
  }
  LoadPlannerOptions options;
  options.world_size = 2;
  options.refuse_absent_ranks = true;
  StateDict state{{"loader", per_rank(Dict{{"at", -1}})}, {"w", torch::zeros(2)}};
  DefaultLoadPlanner planner(options);
  planner.set_up_planner(state, checkpoint.metadata, 1, false);
  const auto thrown = thrown_by([&] { planner.create_local_plan(); });
  CHECK(thrown.code == ErrorCode::kMismatch);
  CHECK(thrown.says("loader.at.rank_3"));
  options.world_size = 0;  // nothing says which ranks are absent
  DefaultLoadPlanner without_size(options);
  without_size.set_up_planner(state, checkpoint.metadata, 1, false);
  CHECK(thrown_by([&] { without_size.create_local_plan(); }).code == ErrorCode::kInvalidArgument);
}

TEST_CASE("a report lists the names that a load leaves alone") {
  using Names = std::vector<std::string>;
  std::vector<StateDict> saved;
  for (int rank = 0; rank < 2; ++rank)
    saved.push_back({{"a", counted({2})}, {"old", Dict{{"b", 1}, {"c", counted({1})}}}, {"rng", per_rank(rank)}});
  saved[0].insert("empty on one", Dict{});
  saved[1].insert("empty on one", Dict{{"x", 1}});
  const MemoryCheckpoint checkpoint = save(saved);
  for (int rank = 0; rank < 3; ++rank) {
    CAPTURE(rank);
    StateDict state{{"a", torch::zeros(2)}, {"empty on one", Dict{{"x", 0}}}, {"nothing", Dict{}}, {"rng", per_rank(-1)},
                    {"later", if_stored(3)}};
    state["new"]["tensor"] = torch::zeros(1);
    state["new"]["rank_1"] = 7;
    DefaultLoadPlanner planner(partial());
    load(checkpoint, state, rank, planner);
    LoadReport report = planner.report();
    Names unexpected = report.unexpected.to_vector();
    std::sort(unexpected.begin(), unexpected.end());
    CHECK(report.missing == Names{"new.tensor", "new.rank_1"});
    CHECK(unexpected == Names{"old.b", "old.c"});
    CHECK(report.kept == (rank == 2 ? Names{"rng", "later"} : Names{"later"}));
    CHECK(state["rng"].to_int() == (rank == 2 ? -1 : rank));
    CHECK(state["new"]["rank_1"].to_int() == 7);
  }
  // Only values marked by `per_rank` account for names of ranks.
  StateDict unmarked{{"a", torch::zeros(2)}, {"rng", 0}};
  DefaultLoadPlanner planner(partial());
  load(checkpoint, unmarked, 0, planner);
  const Names unexpected = planner.report().unexpected.to_vector();
  CHECK(planner.report().missing == Names{"rng"});
  CHECK(std::count(unexpected.begin(), unexpected.end(), "rng.rank_1") == 1);
  // A container that PyTorch before 2.4 stored whole is expected.
  MemoryCheckpoint older;
  older.metadata = metadata_of({{"groups", BytesStorageMetadata{}}, {"other", BytesStorageMetadata{}}});
  older.objects["groups"] = serialize_leaf(List{Dict{{"lr", 0.5}}});
  StateDict groups{{"groups", List{Dict{{"lr", 0.0}}}}};
  load(older, groups, 0, planner);
  CHECK(groups["groups"].list()[0]["lr"].to_double() == 0.5);
  CHECK(planner.report().missing.empty());
  CHECK(planner.report().unexpected == Names{"other"});
  // Its values are loaded if they are all marked by `if_stored`.
  StateDict marked{{"groups", if_stored(List{Dict{{"lr", 0.0}}})}};
  load(older, marked, 0, planner);
  CHECK(marked["groups"].list()[0]["lr"].to_double() == 0.5);
  CHECK(planner.report().kept.empty());
}

TEST_CASE("an opaque value is loaded only if keep_opaque names it, and a damaged bytes object names the value") {
  MemoryCheckpoint opaque = save({{{"odd", 1}}});
  const Bytes archive = opaque.objects["odd"] = write_torch_archive("cown\nA\n)\x81.", {});
  StateDict odd{{"odd", 0}};
  CHECK(thrown_by([&] { load(opaque, odd); }) == Saying{ErrorCode::kUnsupported, "own.A"});
  LoadPlannerOptions keeping;
  keeping.keep_opaque = {"odd"};
  load(opaque, odd, 0, keeping);
  CHECK(odd["odd"].opaque().name() == "own.A");
  CHECK(serialize_leaf(odd["odd"]) == archive);

  MemoryCheckpoint checkpoint = save({{{"train", Dict{{"step", 1}}}}});
  checkpoint.objects["train.step"] = "not an archive";
  StateDict state{{"train", Dict{{"step", 0}}}};
  CHECK(thrown_by([&] { load(checkpoint, state); }) == Saying{ErrorCode::kCorrupt, "\"train.step\""});
}

TEST_CASE("asking for items that no plan of this state dict has is an error") {
  const MemoryCheckpoint checkpoint = save({{{"w", counted({4, 3})}}});
  StateDict state{{"w", torch::zeros({4, 3})}};
  DefaultLoadPlanner planner;
  planner.set_up_planner(state, checkpoint.metadata, 0, true);
  LoadPlan plan = planner.create_local_plan();
  ReadItem item = plan.items.at(0);
  item.lengths = {5, 3};
  CHECK(code_of([&] { planner.resolve_tensor(plan, item); }) == ErrorCode::kNotFound);
  item.dest_name = plan.names.intern("other");
  CHECK(code_of([&] { planner.resolve_tensor(plan, item); }) == ErrorCode::kNotFound);
}
