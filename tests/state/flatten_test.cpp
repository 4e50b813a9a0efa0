// Expected values were recorded from PyTorch 2.14's flatten_state_dict, unless a comment says
// otherwise.
#include <cairn/base/error.hpp>
#include <cairn/tests/messages/allocation_meter.hpp>
#include <cairn/tests/state/memory_checkpoint.hpp>

using namespace cairn;
using namespace cairn::test;

namespace {

const torch::Tensor kT = torch::zeros(2);

Value tuple(std::vector<c10::IValue> elements) { return c10::IValue(c10::ivalue::Tuple::create(std::move(elements))); }

// Returns "name path kind" for each entry, with "T" as the kind of tensors.
std::vector<std::string> names(const FlatStateDict& flat) {
  std::vector<std::string> result;
  for (const FlatEntry& entry : flat) {
    CHECK(entry.fqn == to_string(entry.path));
    result.push_back(entry.fqn + " " + describe_path(entry.path) + " " + (entry.value.is_tensor() ? "T" : entry.value.type_name()));
  }
  return result;
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("two paths to one name are an error that names both") {
  std::string text;
  const auto collide = [&](const StateDict& state) { return code_of([&] { flatten(state); }, &text); };
  CHECK(collide({{"a.b", 1}, {"a", Dict{{"b", 2}}}}) == ErrorCode::kAlreadyExists);
  CHECK(has(text, R"(["a.b"])"));
  CHECK(has(text, R"(["a"]["b"])"));
  CHECK(collide({{"a", Dict{{"b.c", 1}, {"b", Dict{{"c", 1}}}}}}) == ErrorCode::kAlreadyExists);
  CHECK(collide({{"a.0", 1}, {"a", List{kT}}}) == ErrorCode::kAlreadyExists);
  CHECK(has(text, R"(["a"][0])"));
}

TEST_CASE("nesting without end and objects that nobody asked are refused") {
  Value deep = 1;
  for (int i = 0; i < 300; ++i) deep = Dict{{"k", std::move(deep)}};
  CHECK(code_of([&] { flatten({{"deep", deep}}); }) == ErrorCode::kInvalidArgument);
  Value list = 1;
  for (int i = 0; i < 300; ++i) list = List{std::move(list)};
  CHECK(code_of([&] { flatten({{"deep", list}}); }) == ErrorCode::kInvalidArgument);

  struct Object final : Stateful {
    Dict state_dict() override { return {}; }
    void load_state_dict(const Dict&) override {}
  };
  const Value object = std::shared_ptr<Stateful>(std::make_shared<Object>());
  CHECK(thrown_by([&] { flatten({{"app", Dict{{"object", object}}}}); }) ==
        Saying{ErrorCode::kPrecondition, R"(["app"]["object"])"});
}

TEST_CASE("dicts are taken apart, in order") {
  CHECK(names(flatten({{"a", kT}, {"b", 1}, {"c", Value()}, {"d", "x"}})) ==
        Names{R"(a ["a"] T)", R"(b ["b"] a whole number)", R"(c ["c"] None)", R"(d ["d"] a text)"});
  CHECK(names(flatten({{"a", Dict{{"b", Dict{{"c", kT}, {"d", 1}}}}}, {"e", Dict{{"f", 2}}}})) ==
        Names{R"(a.b.c ["a"]["b"]["c"] T)", R"(a.b.d ["a"]["b"]["d"] a whole number)", R"(e.f ["e"]["f"] a whole number)"});
  CHECK(names(flatten({{"a.b", Dict{{"c.d", kT}}}, {"net1.weight", kT}})) ==
        Names{R"(a.b.c.d ["a.b"]["c.d"] T)", R"(net1.weight ["net1.weight"] T)"});
  CHECK(names(flatten({{"", kT}, {"a", Dict{{"", 1}}}})) == Names{R"( [""] T)", R"(a. ["a"][""] a whole number)"});
  CHECK(flatten({}).empty());
}

TEST_CASE("lists are taken apart only for tensors, dicts and such lists") {
  CHECK(names(flatten({{"a", List{1, 2}}, {"b", List{}}, {"c", List{List{1}, List{2, List{3}}}}, {"d", List{Value(), "x"}}})) ==
        Names{R"(a ["a"] a list)", R"(b ["b"] a list)", R"(c ["c"] a list)", R"(d ["d"] a list)"});
  CHECK(names(flatten({{"a", List{kT, 1, List{2}, Value()}}})) ==
        Names{R"(a.0 ["a"][0] T)", R"(a.1 ["a"][1] a whole number)", R"(a.2 ["a"][2] a list)", R"(a.3 ["a"][3] None)"});
  const Value betas = tuple({1, 2});
  CHECK(names(flatten({{"a", List{Dict{{"lr", 1}, {"betas", betas}, {"params", List{0, 1}}}, 5}}})) ==
        Names{R"(a.0.lr ["a"][0]["lr"] a whole number)", R"(a.0.betas ["a"][0]["betas"] a tuple)",
              R"(a.0.params ["a"][0]["params"] a list)", R"(a.1 ["a"][1] a whole number)"});
  CHECK(names(flatten({{"a", List{List{1, 2}, List{kT}}}, {"b", List{List{List{kT}}, List{3}}}})) ==
        Names{R"(a.0 ["a"][0] a list)", R"(a.1.0 ["a"][1][0] T)", R"(b.0.0.0 ["b"][0][0][0] T)", R"(b.1 ["b"][1] a list)"});
  CHECK(names(flatten({{"a", List{1, List{2, Dict{{"k", 3}}}}}})) == Names{R"(a.0 ["a"][0] a whole number)",
                                                                           R"(a.1.0 ["a"][1][0] a whole number)",
                                                                           R"(a.1.1.k ["a"][1][1]["k"] a whole number)"});
}

TEST_CASE("tuples stay whole, whatever is in them") {
  const Value in_list = tuple({kT});
  CHECK(names(flatten({{"a", tuple({kT, 1})},
                       {"b", List{in_list}},
                       {"c", tuple({tuple({1, 2}).ivalue()})},
                       {"d", List{kT, tuple({kT, kT})}}})) ==
        Names{R"(a ["a"] a tuple)", R"(b ["b"] a list)", R"(c ["c"] a tuple)", R"(d.0 ["d"][0] T)", R"(d.1 ["d"][1] a tuple)"});
}

TEST_CASE("an empty dict is a leaf, which PyTorch would lose") {
  CHECK(names(flatten({{"a", Dict{}}, {"b", Dict{{"c", Dict{}}}}, {"d", List{1, Dict{}}}})) ==
        Names{R"(a ["a"] a dict)", R"(b.c ["b"]["c"] a dict)", R"(d.0 ["d"][0] a whole number)", R"(d.1 ["d"][1] a dict)"});
}

TEST_CASE("per_rank marks every leaf below it") {
  std::map<std::string, bool> marked;
  const StateDict state{{"rng", per_rank(Dict{{"cpu", kT}, {"seeds", List{1}}, {"none", Dict{}}})},
                        {"list", List{1, per_rank(2)}},
                        {"mixed", List{kT, per_rank(1)}},
                        {"plain", 1}};
  for (const FlatEntry& entry : flatten(state)) marked[entry.fqn] = entry.value.is_per_rank();
  CHECK(marked == std::map<std::string, bool>{{"rng.cpu", true},
                                              {"rng.seeds", true},
                                              {"rng.none", true},
                                              {"list", true},
                                              {"mixed.0", false},
                                              {"mixed.1", true},
                                              {"plain", false}});
}

TEST_CASE("without flattening, nested values are an error that names all of them") {
  std::string text;
  CHECK(code_of([] { flatten_top_level({{"a", Dict{{"b", 1}}}, {"c", 1}, {"d", List{kT}}}); }, &text) == ErrorCode::kUnsupported);
  CHECK(has(text, R"(["a"])"));
  CHECK(has(text, R"(["d"])"));
  CHECK_FALSE(has(text, R"(["c"])"));
  CHECK(names(flatten_top_level({{"a.b", kT}, {"c", List{1}}, {"d", Dict{}}})) ==
        Names{R"(a.b ["a.b"] T)", R"(c ["c"] a list)", R"(d ["d"] a dict)"});
}

TEST_CASE("a long key above many values is refused before the names fill the memory") {
  StateDict state{{std::string(1 << 20, 'k'), Dict{}}};
  for (int i = 0; i < 1000; ++i) state.begin()->second.dict().insert(std::to_string(i), i);
  const testing::AllocationMeter meter;
  CHECK(code_of([&] { flatten(state); }) == ErrorCode::kUnsupported);
  CHECK(meter.bytes() < std::uint64_t{512} << 20);
}
