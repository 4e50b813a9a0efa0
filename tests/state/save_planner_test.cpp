#include <limits>

#include <cairn/base/error.hpp>
#include <cairn/tests/messages/allocation_meter.hpp>
#include <cairn/tests/state/memory_checkpoint.hpp>

using namespace cairn;
using namespace cairn::test;

namespace {

SavePlan local_plan(DefaultSavePlanner& planner, const StateDict& state, int rank = 0) {
  planner.set_up_planner(state, rank, rank == 0);
  return planner.create_local_plan();
}

const WriteItem& item_of(const SavePlan& plan, const std::string& name) {
  const auto id = plan.names.find(name);
  REQUIRE(id.has_value());
  for (const WriteItem& item : plan.items) {
    if (item.name == *id) return item;
  }
  FAIL("no item of that name");
  throw 0;
}

}  // namespace

TEST_CASE("tensors that cannot be stored are refused, all of them named at once") {
  StateDict state{{"fine", torch::zeros(2)},
                  {"sparse", torch::zeros({2, 2}).to_sparse()},
                  {"nested", Dict{{"quantized", torch::quantize_per_tensor(torch::zeros(2), 0.1, 0, at::kQInt8)}}},
                  {"undefined", torch::Tensor()},
                  {"meta", torch::empty({2}, at::kMeta)},
                  {"dotted.device", c10::IValue(c10::Storage())}};
  if (at::globalContext().userEnabledMkldnn() && at::hasMKLDNN()) state["mkldnn"] = torch::zeros({2, 2}).to_mkldnn();
  std::string text;
  DefaultSavePlanner planner;
  CHECK(code_of([&] { local_plan(planner, state, 3); }, &text) == ErrorCode::kUnsupported);
  CHECK(has(text, "rank 3"));
  CHECK(has(text, R"(["sparse"] is sparse)"));
  CHECK(has(text, R"(["nested"]["quantized"] is quantized)"));
  CHECK(has(text, R"(["undefined"])"));
  CHECK(has(text, R"(["meta"])"));
  CHECK(has(text, R"(["dotted.device"])"));
  if (state.contains("mkldnn")) CHECK(has(text, R"(["mkldnn"] has mkldnn's layout)"));
  CHECK_FALSE(has(text, R"(["fine"])"));
}

TEST_CASE("a plan lists every tensor, part and value, in order, and how names nest") {
  const auto sharded = ShardedTensor::zeros({0, {0, 1, 2}}, {4, 2}, 1);
  const StateDict state{{"model", Dict{{"net.weight", torch::zeros({3, 2}, torch::requires_grad())}}},
                        {"part", sharded},
                        {"step", 7},
                        {"empty part", ShardedTensor::zeros({0, {0, 2, 1}}, {2, 2}, 1)},
                        {"elsewhere", ShardedTensor::zeros({0, {0}}, {2, 2}, 1)},
                        {"no elements", ShardedTensor::zeros({1, {0, 1}}, {2, 0}, 1)}};
  DefaultSavePlanner planner;
  const SavePlan plan = local_plan(planner, state, 1);
  CHECK(plan.names.all() == std::vector<std::string>{"model.net.weight", "part", "step", "empty part", "elsewhere", "no elements"});
  REQUIRE(plan.mappings->size() == 6);
  CHECK(((*plan.mappings)[0] == std::pair<NameId, Path>{0, {"model", "net.weight"}}));
  REQUIRE(plan.items.size() == 4);
  CHECK(plan.items[0].type == WriteItemType::kTensor);
  CHECK(plan.items[0].properties.requires_grad);
  CHECK(plan.items[0].chunk == Box::whole({3, 2}));
  CHECK(plan.items[1].type == WriteItemType::kShard);
  CHECK(plan.items[1].chunk == Box{{2, 0}, {2, 2}});
  CHECK(plan.items[1].size == Extents{4, 2});
  CHECK(plan.items[2].type == WriteItemType::kByteIO);
  CHECK(plan.items[2].content_bytes > 0);
  CHECK(plan.items[3].chunk == Box::whole({2, 0}));
}

TEST_CASE("values marked by per_rank carry the rank's name") {
  const StateDict state{{"rng", per_rank(Dict{{"cpu", torch::zeros(2)}, {"position", 5}})}, {"step", 1}};
  DefaultSavePlanner planner;
  const SavePlan plan = local_plan(planner, state, 2);
  CHECK(item_of(plan, "rng.cpu.rank_2").per_rank);
  CHECK(item_of(plan, "rng.position.rank_2").per_rank);
  CHECK_FALSE(item_of(plan, "step").per_rank);
  CHECK(((*plan.mappings)[1] == std::pair<NameId, Path>{1, {"rng", "position", "rank_2"}}));
  CHECK(thrown_by([&] {
          local_plan(planner, {{"x", per_rank(1)}, {"x.rank_0", 2}});
        }) == Saying{ErrorCode::kAlreadyExists, "x.rank_0"});
}

TEST_CASE("a planner that saves again takes the values of that time, and names and paths that differ") {
  const Value tensor = torch::zeros(2);
  const std::vector<StateDict> states{{{"a.b", tensor}, {"n", 1}},
                                      {{"a.b", torch::ones(3)}, {"n", 2}},
                                      {{"a", Dict{{"b", tensor}}}, {"n", 1}},
                                      {{"a", List{tensor, 5}}, {"n", 1}},
                                      {{"a", Dict{{"0", tensor}, {"1", 5}}}, {"n", 1}},
                                      {{"a", per_rank(Dict{{"0", tensor}, {"1", 5}})}, {"n", 1}},
                                      {{"a", Dict{{"0", Dict{{"rank_1", tensor}}}, {"1", Dict{{"rank_1", 5}}}}}, {"n", 1}},
                                      {{"a", Dict{{"0", frozen(tensor)}, {"1", 5}}}, {"n", per_rank(1)}},
                                      {{"a.b", tensor}},
                                      {{"a.b", tensor}, {"n", 1}, {"o", 1}},
                                      {{"n", 1}, {"a.b", tensor}},
                                      {},
                                      {{"n", 1}}};
  DefaultSavePlanner kept;
  for (const StateDict& before : states)
    for (const StateDict& state : states) {
      local_plan(kept, before, 1);
      const SavePlan again = local_plan(kept, state, 1);
      DefaultSavePlanner fresh;
      const SavePlan plan = local_plan(fresh, state, 1);
      CHECK(plan_digest(again) == plan_digest(plan));
      CHECK(again.names.all() == plan.names.all());
      CHECK((*again.mappings == *plan.mappings));
      for (std::size_t i = 0; i < plan.items.size(); ++i) {
        CHECK(again.items[i].content_hash == plan.items[i].content_hash);
        const ResolvedData data = kept.resolve_data(again, again.items[i]), wanted = fresh.resolve_data(plan, plan.items[i]);
        if (const auto* values = std::get_if<torch::Tensor>(&wanted))
          CHECK(values->equal(std::get<torch::Tensor>(data)));
        else
          CHECK(std::get<Bytes>(data) == std::get<Bytes>(wanted));
      }
    }
  // An empty state, which an asynchronous save leaves behind, does not make the next save take new
  // tables.
  const SavePlan first = local_plan(kept, states[0]);
  local_plan(kept, {});
  CHECK(local_plan(kept, states[1]).names.shares_with(first.names));
}

TEST_CASE("resolve_data gives exactly the item's chunk, without lazy bits, of any layout") {
  const torch::Tensor matrix = counted({6, 4});
  const torch::Tensor complex = counted({3, 4}, at::kComplexFloat);
  const StateDict state{{"transposed", matrix.t()},
                        {"strided", matrix.slice(1, 0, 4, 2)},
                        {"expanded", counted({1, 4}).expand({3, 4})},
                        {"conj", complex.conj()},
                        {"negative", torch::imag(complex.conj())},
                        {"scalar", torch::tensor(2.5)},
                        {"empty", torch::zeros({0, 3})},
                        {"leaf", torch::ones({2, 2}, torch::requires_grad())}};
  REQUIRE(torch::imag(complex.conj()).is_neg());
  DefaultSavePlanner planner;
  const SavePlan plan = local_plan(planner, state);
  for (const WriteItem& item : plan.items) {
    const std::string& name = plan.names[item.name];
    CAPTURE(name);
    const torch::Tensor& whole = state.at(name).tensor();
    const auto data = std::get<torch::Tensor>(planner.resolve_data(plan, item));
    CHECK_FALSE(data.is_conj());
    CHECK_FALSE(data.is_neg());
    CHECK_FALSE(data.requires_grad());
    CHECK(same(data, whole));
    if (whole.dim() == 0 || whole.size(0) < 2) continue;
    WriteItem rows = item;
    rows.chunk.offsets[0] = 1;
    rows.chunk.sizes[0] = 1;
    CHECK(same(std::get<torch::Tensor>(planner.resolve_data(plan, rows)), whole.narrow(0, 1, 1)));
  }
  const auto alias = std::get<torch::Tensor>(planner.resolve_data(plan, item_of(plan, "transposed")));
  CHECK(alias.is_alias_of(matrix));
}

TEST_CASE("resolve_data narrows parts of the global tensor, and refuses other ranks' parts") {
  const torch::Tensor whole = counted({8, 3});
  const ShardedTensor sharded({8, 3}, DType::kFloat32, {{whole.slice(0, 2, 5), {2, 0}}, {whole.slice(0, 6, 8), {6, 0}}});
  DefaultSavePlanner planner;
  const SavePlan plan = local_plan(planner, {{"s", sharded}, {"n", 1}});
  WriteItem item = item_of(plan, "s");
  item.chunk = {{3, 1}, {2, 2}};
  CHECK(same(std::get<torch::Tensor>(planner.resolve_data(plan, item)), whole.slice(0, 3, 5).slice(1, 1, 3)));
  item.chunk = {{7, 0}, {1, 3}};
  CHECK(same(std::get<torch::Tensor>(planner.resolve_data(plan, item)), whole.slice(0, 7, 8)));
  item.chunk = {{4, 0}, {3, 3}};
  CHECK(thrown_by([&] { planner.resolve_data(plan, item); }) == Saying{ErrorCode::kNotFound, "[4:7, 0:3]"});
  item.type = WriteItemType::kByteIO;
  CHECK(code_of([&] { planner.resolve_data(plan, item); }) == ErrorCode::kMismatch);
  SavePlan other;
  item.name = other.names.intern("unknown");
  CHECK(code_of([&] { planner.resolve_data(other, item); }) == ErrorCode::kNotFound);
}

TEST_CASE("bytes are the value's at planning, and can be asked for again") {
  DefaultSavePlanner planner;
  const StateDict state{{"a", "text"}, {"b", Blob{"bytes"}}};
  const SavePlan plan = planner.finish_plan(local_plan(planner, state));
  for (int time = 0; time < 2; ++time) {
    CHECK(deserialize_leaf(std::get<Bytes>(planner.resolve_data(plan, item_of(plan, "a")))).to_text() == "text");
    CHECK(deserialize_leaf(std::get<Bytes>(planner.resolve_data(plan, item_of(plan, "b")))).blob().bytes == "bytes");
  }
  // With a plan that lacks the item, the planner does not keep its bytes but can still serialize it
  // again.
  SavePlan nothing = plan;
  nothing.items.clear();
  planner.finish_plan(nothing);
  CHECK(deserialize_leaf(std::get<Bytes>(planner.resolve_data(plan, item_of(plan, "a")))).to_text() == "text");
}

TEST_CASE("the texts of short plain values are in the plan") {
  DefaultSavePlanner planner;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const SavePlan plan = local_plan(planner, {{"0.001", 0.001},
                                             {"2.0", 2.0},
                                             {"7", 7},
                                             {"True", true},
                                             {"'adam'", "adam"},
                                             {"None", Value()},
                                             {"nan", nan},
                                             {"1e+100", 1e100},
                                             {"long", 12345678}});
  for (const char* text : {"0.001", "2.0", "7", "True", "'adam'", "None", "1e+100"})
    CHECK(short_text_in(item_of(plan, text).content_hash) == text);
  for (const char* name : {"nan", "long"}) CHECK(short_text_in(item_of(plan, name).content_hash).empty());
}

// Returns the hash in the plan of a save that compares replicas.
std::uint64_t hash_of(const Value& value, int world_size = 0) {
  SavePlannerOptions options;
  options.hash_tensors = true;
  options.world_size = world_size;
  DefaultSavePlanner planner(options);
  return local_plan(planner, {{"value", value}}).items.at(0).content_hash;
}

TEST_CASE("the hash of a tensor is that of its elements, however they lie in memory") {
  const torch::Tensor large = torch::arange(3 << 20).view({3, 1 << 20});  // of six pieces
  const torch::Tensor complex = torch::complex(torch::rand({3, 5}), torch::rand({3, 5}));
  CHECK(hash_of(large) == hash_of(large.t().contiguous().t()));
  CHECK(hash_of(large) == hash_of(torch::stack({large, large}, 2).select(2, 1)));
  CHECK(hash_of(complex.conj()) == hash_of(complex.conj().resolve_conj()));
  CHECK(hash_of(torch::imag(complex.conj())) == hash_of(torch::imag(complex.conj()).resolve_neg()));
  CHECK(hash_of(complex.conj()) != hash_of(complex));
  CHECK(hash_of(torch::tensor(2.0)) == hash_of(torch::full({}, 2.0)));
  CHECK(hash_of(torch::zeros({0, 3})) == hash_of(torch::zeros({0, 3})));
  CHECK(hash_of(torch::full({3}, 2.0)) == hash_of(torch::full({}, 2.0).expand({3})));
  CHECK(hash_of(large.to(torch::kBFloat16)) == hash_of(large.to(torch::kBFloat16).clone()));
  for (const std::int64_t at : {0, 1 << 20, (3 << 20) - 1}) {
    torch::Tensor changed = large.clone();
    changed.view(-1)[at] += 1;
    CHECK(hash_of(changed) != hash_of(large));
  }
}

TEST_CASE("bits are hashed: equal NaNs are equal, and zeros of different sign are not") {
  CHECK(hash_of(torch::full({2}, NAN)) == hash_of(torch::full({2}, NAN)));
  CHECK(hash_of(torch::zeros(2)) != hash_of(-torch::zeros(2)));
  const auto nan = [](int payload) { return torch::full({2}, 0x7fc00000 + payload, torch::kInt32).view(torch::kFloat32); };
  CHECK(hash_of(nan(1)) != hash_of(nan(0)));
}

TEST_CASE("tensors are hashed if other ranks may hold them, and only on request") {
  const torch::Tensor whole = torch::ones({4, 4});
  const DeviceMesh grid({2, 2});
  CHECK(hash_of(whole) != 0);
  CHECK(hash_of(ShardedTensor::distribute(whole, grid, {Replicate{}, Shard{0}}, 0), 4) != 0);
  CHECK(hash_of(ShardedTensor({4, 4}, DType::kFloat32, {{torch::ones({2, 4}), {0, 0}}}), 2) != 0);
  for (const int world_size : {4, 5, 0})  // ranks that are not in the mesh may have a mesh of their own
    CHECK((hash_of(ShardedTensor::distribute(whole, grid, {Shard{1}, Shard{0}}, 0), world_size) == 0) == (world_size == 4));
  CHECK(hash_of(ShardedTensor::distribute(whole, DeviceMesh({1, 2}), {Replicate{}, Shard{0}}, 0), 2) == 0);
  CHECK(hash_of(ShardedTensor::distribute(whole, ChunkShardingSpec{0, {0, 1}}, 0), 2) == 0);
  CHECK(hash_of(ShardedTensor::distribute(whole, ChunkShardingSpec{0, {0, 1}}, 0), 3) != 0);
  CHECK(hash_of(per_rank(whole)) == 0);
  DefaultSavePlanner planner;
  CHECK_FALSE(has_tensor_hashes(local_plan(planner, {{"value", whole}})));
}

TEST_CASE("a later save names ranks that disagree on a value") {
  DefaultSavePlanner coordinator;
  DefaultSavePlanner ranks[2];
  const auto plan = [&](int first, int second) {
    return coordinator.create_global_plan({local_plan(ranks[0], {{"t", torch::zeros(4)}, {"loss", first}}, 0),
                                           local_plan(ranks[1], {{"t", torch::zeros(4)}, {"loss", second}}, 1)});
  };
  plan(1, 1);
  CHECK(thrown_by([&] { plan(1, 2); }) == Saying{ErrorCode::kMismatch, "'loss' is 1 on rank 0, 2 on rank 1"});
  CHECK(code_of([&] { plan(2, 1); }) == ErrorCode::kMismatch);
  const GlobalSavePlan agreed = plan(3, 3);
  CHECK(agreed.plans.size() == 2);
}

TEST_CASE("a planner finishes a plan without a copy of its items") {
  DefaultSavePlanner planner;
  const StateDict state{{"w", torch::zeros({4, 4})}, {"step", 3}};
  const SavePlan local = local_plan(planner, state);
  CHECK(planner.finish_plan(local).items.shares_with(local.items));
}

TEST_CASE("a planner keeps no global plan between saves") {
  DefaultSavePlanner planner;
  StateDict state;
  for (int i = 0; i < 100; ++i) state["tensor_" + std::to_string(i)] = torch::zeros({4, 4});
  const SavePlan local = local_plan(planner, state);
  planner.create_global_plan(std::vector<SavePlan>(100, local));
  const testing::AllocationMeter meter;
  planner.create_global_plan(std::vector<SavePlan>(100, local));
  CHECK(meter.bytes() > 100 * 100 * sizeof(NameId));  // made anew
  CHECK(meter.held() < 4096);
}

TEST_CASE("the lowest rank's value wins when asked for, in each save") {
  SavePlannerOptions options;
  options.global.rank_values = RankValues::kLowestRankWins;
  std::vector<std::unique_ptr<SavePlanner>> planners;
  for (int i = 0; i < 2; ++i) planners.push_back(std::make_unique<DefaultSavePlanner>(options));
  for (const int value : {10, 20}) {
    const MemoryCheckpoint checkpoint = save({{{"v", value}}, {{"v", value + 1}}}, planners);
    StateDict state{{"v", 0}};
    load(checkpoint, state, 1);
    CHECK(state["v"].to_int() == value);
  }
}
