#include <cairn/base/error.hpp>
#include <cairn/state/adapters.hpp>
#include <cairn/tests/state/memory_checkpoint.hpp>

using namespace cairn;
using namespace cairn::test;

TEST_CASE("a dict refuses a key given twice and names an unknown one") {
  std::string text;
  CHECK(code_of([] { Dict{{"a", 1}, {"a", 2}}; }) == ErrorCode::kAlreadyExists);
  Dict dict{{"weight", 1}, {"bias", 2}};
  CHECK(code_of([&] { dict.insert("bias", 3); }) == ErrorCode::kAlreadyExists);
  CHECK(code_of([&] { dict.at("wieght"); }, &text) == ErrorCode::kNotFound);
  CHECK(has(text, "\"wieght\""));
  CHECK(has(text, "\"weight\""));
  CHECK(dict.size() == 2);
}

TEST_CASE("a dict keeps the order of insertion, also after erasing") {
  Dict dict{{"z", 1}, {"a", 2}, {"m", 3}};
  dict["b"] = 4;
  CHECK(dict.erase("a"));
  CHECK_FALSE(dict.erase("a"));
  std::string order;
  for (const auto& [key, value] : dict) order += key + std::to_string(value.to_int());
  CHECK(order == "z1m3b4");
  CHECK(dict.at("b").to_int() == 4);
  dict["a"] = 5;
  CHECK((dict.end() - 1)->first == "a");
}

TEST_CASE("reading a value as what it is not says what it is") {
  std::string text;
  const Value value = "text";
  CHECK(code_of([&] { value.tensor(); }, &text) == ErrorCode::kMismatch);
  CHECK(has(text, "a text"));
  CHECK(code_of([&] { value.to_int(); }) == ErrorCode::kMismatch);
  CHECK(code_of([&] { value["key"]; }) == ErrorCode::kMismatch);
  CHECK(code_of([&] { Value(1).dict(); }) == ErrorCode::kMismatch);
  CHECK(code_of([&] { Value(1.5).to_int(); }) == ErrorCode::kMismatch);
  CHECK(code_of([&] { Value(std::shared_ptr<Stateful>()); }) == ErrorCode::kInvalidArgument);
  CHECK(code_of([&] { Value(std::shared_ptr<torch::nn::Module>()); }) == ErrorCode::kInvalidArgument);
  CHECK(Value(3).to_double() == 3.0);
  CHECK(value.to_text() == "text");
}

TEST_CASE("nested access makes dicts on the way") {
  StateDict state;
  state["model"]["layer"]["weight"] = 7;
  CHECK(state["model"]["layer"]["weight"].to_int() == 7);
  CHECK(code_of([&] { state["model"]["layer"]["weight"]["deeper"] = 1; }) == ErrorCode::kMismatch);
}

TEST_CASE("copies of containers are deep, of tensors shallow") {
  const torch::Tensor tensor = torch::zeros(2);
  Value original = Dict{{"list", List{1, tensor}}};
  Value copy = original;
  copy["list"].list()[0] = 2;
  CHECK(original["list"].list()[0].to_int() == 1);
  CHECK(copy["list"].list()[1].tensor().unsafeGetTensorImpl() == tensor.unsafeGetTensorImpl());
}

TEST_CASE("an IValue becomes what flattening treats it as") {
  const torch::Tensor tensor = torch::zeros(2);
  CHECK(Value(c10::IValue(tensor)).is_tensor());
  CHECK(Value(c10::IValue()).is_none());
  c10::impl::GenericDict dict(c10::IntType::get(), c10::TensorType::get());
  dict.insert(7, tensor);
  const Value from_dict{c10::IValue(dict)};
  REQUIRE(from_dict.is_dict());
  CHECK(from_dict["7"].is_tensor());
  CHECK(Value(c10::IValue(c10::List<torch::Tensor>({tensor}))).is_list());
  CHECK(Value(c10::IValue(c10::List<std::int64_t>({1, 2}))).is_ivalue());
  CHECK(Value(c10::IValue(c10::ivalue::Tuple::create(tensor, 1))).is_ivalue());
  c10::impl::GenericDict odd(c10::FloatType::get(), c10::IntType::get());
  odd.insert(0.5, 1);
  CHECK(code_of([&] { Value{c10::IValue(odd)}; }) == ErrorCode::kUnsupported);
}

TEST_CASE("set_at makes lists and dicts, and refuses what has no such place") {
  StateDict state;
  set_at(state, {"a", std::int64_t{2}, "k"}, 5);
  REQUIRE(state["a"].list().size() == 3);
  CHECK(state["a"].list()[0].is_none());
  CHECK(state["a"].list()[2]["k"].to_int() == 5);
  set_at(state, {"a", std::int64_t{0}}, 1);
  CHECK(state["a"].list()[0].to_int() == 1);
  CHECK(find_at(state, {"a", std::int64_t{2}, "k"})->to_int() == 5);
  CHECK(find_at(state, {"a", std::int64_t{3}}) == nullptr);
  CHECK(find_at(state, {"a", std::int64_t{0}, "k"}) == nullptr);

  std::string text;
  CHECK(code_of([&] { set_at(state, {"a", std::int64_t{0}, "deeper"}, 1); }, &text) == ErrorCode::kMismatch);
  CHECK(has(text, R"(["a"][0])"));
  CHECK(code_of([&] { set_at(state, {"a", "key"}, 1); }) == ErrorCode::kMismatch);
  CHECK(code_of([&] { set_at(state, {}, 1); }) == ErrorCode::kInvalidArgument);
  CHECK(code_of([&] { set_at(state, {"a", std::int64_t{-1}}, 1); }) == ErrorCode::kInvalidArgument);
  CHECK(code_of([&] { set_at(state, {"a", std::int64_t{1} << 40}, 1); }) == ErrorCode::kInvalidArgument);

  state["rng"] = per_rank(1);
  set_at(state, {"rng"}, 2);
  CHECK(state["rng"].is_per_rank());
}
