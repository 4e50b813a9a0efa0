// Loads into tensors that share memory.
#include <cmath>

#include <cairn/tests/state/memory_checkpoint.hpp>

using namespace cairn;
using namespace cairn::test;

namespace {

const Extents kWhole{4, 3};

ShardedTensor rows(const torch::Tensor& tensor, std::vector<std::int64_t> begins) {
  std::vector<LocalShard> shards;
  for (const std::int64_t begin : begins) shards.push_back({tensor, {begin, 0}});
  return ShardedTensor(kWhole, DType::kFloat32, std::move(shards));
}

}  // namespace

TEST_CASE("tensors in the same memory load if the checkpoint has equal values for them") {
  const torch::Tensor w = counted({4, 3}), complex = counted({4, 3}, at::kComplexFloat), even = counted({2, 3});
  const torch::Tensor nan = torch::full({4, 3}, std::nan(""));
  const torch::Tensor m = torch::zeros({4, 3}), c = torch::zeros({4, 3}, at::kComplexFloat), half = torch::zeros({2, 3});
  const torch::Tensor low = torch::zeros({4, 3}, at::kBFloat16), wide = torch::zeros({4, 6});
  torch::Tensor inference;
  {
    const c10::InferenceMode guard;
    inference = torch::zeros({4, 3});
  }
  struct Case {
    const char* what;
    StateDict saved;
    StateDict state;       // a template
    torch::Tensor memory;  // that the state shares
    torch::Tensor expected{};
  };
  const Case cases[] = {
      {"the same tensor", {{"a", w}, {"b", w}}, {{"a", m}, {"b", m}}, m, w},
      {"in lists and dicts", {{"x", List{w, Dict{{"y", w}}}}}, {{"x", List{m, Dict{{"y", m}}}}}, m, w},
      {"without a number", {{"a", nan}, {"b", nan}}, {{"a", m}, {"b", m}}, m, nan},
      {"three views", {{"a", w}, {"b", w.t()}, {"c", w.flatten()}}, {{"a", m}, {"b", m.t()}, {"c", m.view({12})}}, m, w},
      {"bits as integers", {{"a", w}, {"b", w.view(at::kInt)}}, {{"a", m}, {"b", m.view(at::kInt)}}, m, w},
      {"as real numbers",
       {{"a", complex}, {"b", torch::view_as_real(complex)}},
       {{"a", c}, {"b", torch::view_as_real(c)}},
       c,
       complex},
      {"conjugated", {{"a", complex}, {"b", complex.conj()}}, {{"a", c}, {"b", c.conj()}}, c, complex},
      {"with casts", {{"a", w}, {"b", w.to(at::kDouble)}}, {{"a", low}, {"b", low}}, low, w.to(at::kBFloat16)},
      {"a view with gaps",
       {{"a", w}, {"b", w}},
       {{"a", wide.slice(1, 0, 6, 2)}, {"b", wide.slice(1, 0, 6, 2)}},
       wide.slice(1, 0, 6, 2),
       w},
      {"gaps, transposed",
       {{"a", w}, {"b", w.t()}},
       {{"a", wide.slice(1, 1, 6, 2)}, {"b", wide.slice(1, 1, 6, 2).t()}},
       wide.slice(1, 1, 6, 2),
       w},
      {"of inference mode", {{"a", w}, {"b", w}}, {{"a", inference}, {"b", inference}}, inference, w},
      {"parts of two tensors",
       {{"a", torch::cat({even, even})}, {"b", torch::cat({even + 1, even})}},
       {{"a", rows(half, {0})}, {"b", rows(half, {2})}},
       half,
       even},
      {"parts of one tensor", {{"a", torch::cat({even, even})}}, {{"a", rows(half, {0, 2})}}, half, even},
  };
  for (const Case& it : cases) {
    CAPTURE(it.what);
    const MemoryCheckpoint checkpoint = save({it.saved});
    StateDict state = it.state;
    load(checkpoint, state, 0, casting());
    CHECK(same(it.memory, it.expected));
    // Now with another value for the last tensor.
    MemoryCheckpoint other = checkpoint;
    torch::Tensor& last = std::prev(other.chunks.end())->second;
    last = last.clone();
    last.flatten().narrow(0, last.numel() - 1, 1).fill_(99);
    const torch::Tensor before = it.memory.clone();
    const Thrown thrown = thrown_by([&] { load(other, state, 0, casting()); });
    CHECK(thrown == Saying{ErrorCode::kMismatch, "nothing was changed"});
    const FlatStateDict saved = flatten(it.saved);
    for (const FlatEntry& entry : {saved.front(), saved.back()}) CHECK(thrown.says('"' + entry.fqn + '"'));
    CHECK(same(it.memory, before));
  }
}

TEST_CASE("tensors that share some of their memory are refused when the load is planned") {
  const MemoryCheckpoint checkpoint =
      save({{{"a", counted({4})}, {"b", counted({4})}, {"c", counted({4, 3})}, {"list", List{counted({4})}}}});
  const torch::Tensor base = torch::zeros({6});
  StateDict state{{"a", base.narrow(0, 0, 4)},
                  {"b", base.narrow(0, 2, 4)},
                  {"c", torch::zeros({9}).as_strided({4, 3}, {2, 1})},
                  {"list", List{base.narrow(0, 1, 4)}}};
  std::string text;
  CHECK(code_of([&] { load(checkpoint, state); }, &text) == ErrorCode::kMismatch);
  CHECK(has(text, "\"a\" and \"list.0\": the checkpoint has a value for each"));
  CHECK(has(text, "\"b\" and \"list.0\": the checkpoint has a value for each"));
  CHECK(has(text, "\"c\": the tensor to fill has elements that share memory"));
  CHECK(has(text, "nothing was changed"));
  CHECK(same(base, torch::zeros({6})));
}

TEST_CASE("a load counts as a change of every tensor of the memory that it fills") {
  const MemoryCheckpoint checkpoint = save({{{"a", counted({4})}, {"b", counted({4})}, {"c", counted({4})}}});
  const torch::Tensor a = torch::zeros({4}), c = a.detach();
  torch::Tensor b = torch::zeros({4});
  b.set_data(a);
  StateDict state{{"a", a}, {"b", b}, {"c", c}};
  load(checkpoint, state);
  for (const torch::Tensor& tensor : {a, b, c}) CHECK(tensor._version() > 0);
  // The versions also increase if the reader fails after it has written into the tensors.
  const std::int64_t before = b._version();
  DefaultLoadPlanner planner;
  planner.set_up_planner(state, checkpoint.metadata, 0, true);
  const LoadPlan plan = planner.create_local_plan();
  planner.compare_shared([&](const LoadPlan& reads) {
    for (const ReadItem& item : reads.items) read_item(checkpoint, planner, reads, item);
  });
  planner.resolve_tensor(plan, plan.items[0]);
  CHECK(b._version() > before);
}

TEST_CASE("a tensor that keeps its value may share memory with one that is loaded") {
  const MemoryCheckpoint checkpoint = save({{{"embed", counted({4})}}});
  const torch::Tensor tied = torch::zeros({4});
  StateDict state{{"embed", tied}, {"head", if_stored(tied)}};
  load(checkpoint, state);
  CHECK(same(tied, counted({4})));
}

TEST_CASE("a planner that was not asked to compare reads nothing into shared memory") {
  const MemoryCheckpoint checkpoint = save({{{"a", counted({4})}, {"b", counted({4})}}});
  const torch::Tensor tied = torch::zeros({4});
  StateDict state{{"a", tied}, {"b", tied}};
  DefaultLoadPlanner planner;
  planner.set_up_planner(state, checkpoint.metadata, 0, true);
  const LoadPlan plan = planner.create_local_plan();
  REQUIRE(plan.items.size() == 1);
  CHECK(thrown_by([&] { planner.resolve_tensor(plan, plan.items[0]); }) == Saying{ErrorCode::kPrecondition, "compare_shared"});
}
