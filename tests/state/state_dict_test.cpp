#include <limits>

#include <cairn/base/error.hpp>
#include <cairn/state/adapters.hpp>
#include <cairn/state/planner.hpp>
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
  const Value value = "text";
  CHECK(thrown_by([&] { value.tensor(); }) == Saying{ErrorCode::kMismatch, "a text"});
  CHECK(code_of([&] { value.to_int(); }) == ErrorCode::kMismatch);
  CHECK(code_of([&] { value["key"]; }) == ErrorCode::kMismatch);
  CHECK(code_of([&] { Value(1).dict(); }) == ErrorCode::kMismatch);
  CHECK(code_of([&] { Value(1.5).to_int(); }) == ErrorCode::kMismatch);
  CHECK(code_of([&] { Value(std::shared_ptr<Stateful>()); }) == ErrorCode::kInvalidArgument);
  CHECK(code_of([&] { Value(std::shared_ptr<torch::nn::Module>()); }) == ErrorCode::kInvalidArgument);
  CHECK(Value(3).to_double() == 3.0);
  CHECK(value.to_text() == "text");
}

TEST_CASE("modules, optimizers and Stateful objects are taken as the trainer has them") {
  struct Net : torch::nn::Module {
    Net() { register_parameter("weight", torch::ones(3)); }
  };
  struct Counter : Stateful {
    Dict state_dict() override { return {{"count", 7}}; }
    void load_state_dict(const Dict&) override {}
  };
  struct Both : torch::nn::Module, Counter {};
  const auto net = std::make_shared<Net>();
  const torch::nn::Linear linear(2, 3);
  const auto optimizer = std::make_shared<torch::optim::SGD>(net->parameters(), 0.1);
  const StateDict state{{"net", net},
                        {"linear", linear},
                        {"sequential", torch::nn::Sequential(torch::nn::Linear(2, 2))},
                        {"optimizer", optimizer},
                        {"scheduler", std::make_shared<torch::optim::StepLR>(*optimizer, 3)},
                        {"counter", std::make_shared<Counter>()},
                        {"both", std::make_shared<Both>()}};
  const auto described = [&](const char* key) { return state.at(key).stateful()->state_dict(); };
  CHECK(described("net").at("weight").tensor().unsafeGetTensorImpl() == net->parameters().front().unsafeGetTensorImpl());
  CHECK(described("linear").contains("bias"));
  CHECK(described("sequential").contains("0.weight"));
  CHECK(described("optimizer").contains("param_groups"));
  CHECK(described("scheduler").at("last_epoch").to_int() == -1);
  CHECK(described("counter").at("count").to_int() == 7);
  CHECK(described("both").contains("count"));
  CHECK(code_of([&] { Value(std::shared_ptr<Net>()); }) == ErrorCode::kInvalidArgument);
  CHECK(code_of([&] { Value(std::shared_ptr<torch::optim::StepLR>()); }) == ErrorCode::kInvalidArgument);
  static_assert(!kIsValue<std::shared_ptr<std::string>>);
}

TEST_CASE("a value takes every integer type, and no pointer but text") {
  const StateDict state{{"size", std::size_t{7}},
                        {"unsigned", 7u},
                        {"long long", -7LL},
                        {"short", static_cast<short>(-7)},
                        {"byte", std::uint8_t{255}},
                        {"most", std::uint64_t{std::numeric_limits<std::int64_t>::max()}},
                        {"flag", true}};
  CHECK(state.at("size").to_int() == 7);
  CHECK(state.at("unsigned").to_int() == 7);
  CHECK(state.at("long long").to_int() == -7);
  CHECK(state.at("short").to_int() == -7);
  CHECK(state.at("byte").to_int() == 255);
  CHECK(state.at("most").to_int() == std::numeric_limits<std::int64_t>::max());
  CHECK(state.at("flag").to_bool());
  CHECK(Value(1.5f).to_double() == 1.5);
  CHECK(thrown_by([] { Value(std::uint64_t{1} << 63); }) == Saying{ErrorCode::kInvalidArgument, "9223372036854775808"});

  char buffer[] = "text";
  CHECK(Value(&buffer[0]).to_text() == "text");
  CHECK(Value("text").to_text() == "text");
  static_assert(!std::is_constructible_v<Value, torch::Tensor*>);
  static_assert(!std::is_constructible_v<Value, const int*>);
  static_assert(!std::is_constructible_v<Value, void*>);
  static_assert(!std::is_constructible_v<Value, void (*)()>);
  static_assert(!std::is_constructible_v<Value, std::nullptr_t>);
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

TEST_CASE("an IValue that contains itself is refused, however it does") {
  const auto any_list = [] { return c10::impl::GenericList(c10::AnyType::get()); };
  const auto refused = [](const c10::IValue& value) {
    std::string text;
    const bool as_expected = code_of([&] { Value{value}; }, &text) == ErrorCode::kUnsupported;
    return as_expected && has(text, "contains itself");
  };
  auto plain = any_list();
  plain.push_back(1);
  plain.push_back(plain);
  CHECK(refused(plain));
  auto with_tensor = any_list();
  with_tensor.push_back(torch::zeros(1));
  with_tensor.push_back(with_tensor);
  CHECK(refused(with_tensor));
  c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
  auto through_dict = any_list();
  dict.insert("self", through_dict);
  through_dict.push_back(dict);
  CHECK(refused(through_dict));
  // A tuple stays whole, whatever it contains. Serializing it detects the cycle.
  auto in_tuple = any_list();
  const c10::IValue tuple(c10::ivalue::Tuple::create(std::vector<c10::IValue>{in_tuple}));
  in_tuple.push_back(tuple);
  CHECK(Value(tuple).is_ivalue());
  CHECK(code_of([&] { serialize_leaf(Value(tuple)); }) == ErrorCode::kUnsupported);
  for (auto* list : {&plain, &with_tensor, &through_dict, &in_tuple}) list->clear();
  dict.clear();
}

TEST_CASE("an IValue that contains itself is refused, and copies of shared parts limited") {
  const auto list_of = [](const std::vector<c10::IValue>& elements) {
    c10::impl::GenericList list(c10::AnyType::get());
    for (const c10::IValue& element : elements) list.push_back(element);
    return c10::IValue(list);
  };
  c10::IValue deep = 1;
  for (int i = 0; i < 1000; ++i) deep = list_of({deep});
  CHECK(code_of([&] { Value{deep}; }) == ErrorCode::kInvalidArgument);

  // 60 lists that represent 2^60 places.
  c10::IValue shared = 1;
  for (int i = 0; i < 60; ++i) shared = list_of({shared, shared});
  CHECK(Value(shared).is_ivalue());
  c10::IValue bomb = torch::zeros(1);
  for (int i = 0; i < 60; ++i) bomb = list_of({bomb, bomb});
  CHECK(thrown_by([&] { Value{bomb}; }) == Saying{ErrorCode::kUnsupported, "many places"});

  // A list may appear in two places. Each place gets its own copy.
  const c10::IValue twice = list_of({torch::zeros(1), 5});
  Value both = list_of({twice, twice});
  both.list()[0].list()[1] = 6;
  CHECK(both.list()[1].list()[1].to_int() == 5);
}

TEST_CASE("a list of plain values that is read as a List says how to read it") {
  const Value value{c10::IValue(c10::List<std::int64_t>({1, 2}))};
  CHECK(thrown_by([&] { value.list(); }) == Saying{ErrorCode::kMismatch, "ivalue()"});
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

  CHECK(thrown_by([&] { set_at(state, {"a", std::int64_t{0}, "deeper"}, 1); }) == Saying{ErrorCode::kMismatch, R"(["a"][0])"});
  CHECK(code_of([&] { set_at(state, {"a", "key"}, 1); }) == ErrorCode::kMismatch);
  CHECK(code_of([&] { set_at(state, {}, 1); }) == ErrorCode::kInvalidArgument);
  CHECK(code_of([&] { set_at(state, {"a", std::int64_t{-1}}, 1); }) == ErrorCode::kInvalidArgument);
  CHECK(code_of([&] { set_at(state, {"a", std::int64_t{1} << 40}, 1); }) == ErrorCode::kInvalidArgument);

  state["rng"] = per_rank(1);
  set_at(state, {"rng"}, 2);
  CHECK(state["rng"].is_per_rank());
}
