// The unpickler: hostile input, then Python's output.
#include <deque>
#include <limits>
#include <string>
#include <vector>

#include <cairn/tests/support/plain.hpp>

#include <cairn/formats/pickler.hpp>
#include <cairn/formats/unpickler.hpp>
#include <cairn/tests/messages/allocation_meter.hpp>
#include <cairn/tests/support/thrown.hpp>

using namespace cairn;
using namespace cairn::testing;
using namespace std::string_literals;

namespace {

const std::vector<PickleGlobal> kKnown{{"torch", "Size"}, {"collections", "OrderedDict"}, {"builtins", "complex"}};

// Unpickles `pickle`. Keeps the pickle alive, because the tree refers to its bytes.
PickleTree read(std::string pickle, const PickleLimits& limits = {}) {
  static std::deque<std::string> kept;
  kept.push_back(std::move(pickle));
  return unpickle(kept.back(), "a test", kKnown, limits);
}

// Does the same, and keeps opaque values.
PickleTree keeping(std::string pickle) {
  static std::deque<std::string> kept;
  kept.push_back(std::move(pickle));
  return unpickle(kept.back(), "a test", kKnown, {}, OpaqueValues::kKept);
}

Thrown pickle_refusal(const std::string& pickle, const PickleLimits& limits = {}) {
  return thrown_by([&] { read(pickle, limits); });
}

// Pickles {"step": 7, "lr": 0.1, "names": ["a", "b"], "size": torch.Size((2, 3)), "twice": the same
// list}.
std::string sample(int protocol) {
  Pickler out(protocol);
  out.empty_dict();
  out.mark();
  out.text("step");
  out.integer(7);
  out.text("lr");
  out.real(0.1);
  out.text("names");
  out.empty_list();
  const auto list = out.remember();
  out.mark();
  out.text("a");
  out.text("b");
  out.appends();
  out.text("size");
  out.global("torch", "Size");
  out.integer(2);
  out.integer(3);
  out.tuple(2);
  out.tuple(1);
  out.reduce();
  out.text("twice");
  out.recall(list);
  out.text("big");
  out.integer(std::int64_t{1} << 40);
  out.set_items();
  return std::move(out).finish();
}

std::string repeated(const std::string& unit, std::size_t count) {
  std::string result;
  for (std::size_t i = 0; i < count; ++i) result += unit;
  return result;
}

}  // namespace

TEST_CASE("a pickle may name only what is on the list, and the error names what it wanted") {
  // os.system("true") as an exploit would write it, in both spellings.
  const auto by_line = pickle_refusal("\x80\x02"s + "cos\nsystem\nX\x04\x00\x00\x00true\x85R."s);
  CHECK(by_line.code == ErrorCode::kUnsupported);
  CHECK(by_line.says("os.system"));
  CHECK(by_line.says("at byte 2"));
  const auto by_stack = pickle_refusal("\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R."s);
  CHECK(by_stack.code == ErrorCode::kUnsupported);
  CHECK(by_stack.says("posix.system"));
  // A name must match as a whole: neither a part nor an attribute of a known name passes.
  CHECK(pickle_refusal("ctorch\nSize.__init__\n."s).says("torch.Size.__init__"));
  CHECK(pickle_refusal("ctorch.Size\nx\n."s).code == ErrorCode::kUnsupported);
  CHECK(pickle_refusal("cbuiltins\neval\n."s).says("builtins.eval"));
  CHECK(pickle_refusal("c__builtin__\neval\n."s).says("builtins.eval"));
  // Control characters of hostile names do not reach the terminal.
  CHECK(pickle_refusal("c\x1b[31m\nx\n."s).what.find('\x1b') == std::string::npos);
}

TEST_CASE("only globals are called, with tuples of arguments") {
  CHECK(is_refusal(pickle_refusal("K\x01)R."s)));
  CHECK(is_refusal(pickle_refusal("]K\x01R."s)));
  CHECK(is_refusal(pickle_refusal("ctorch\nSize\n]R."s)));
  CHECK(is_refusal(pickle_refusal("ctorch\nSize\n)\x81}K\x01K\x02s\x92."s)));
  CHECK(is_refusal(pickle_refusal("ctorch\nSize\n)}K\x01K\x02s\x92."s)));  // keyword arguments
  CHECK(is_refusal(pickle_refusal("]}b."s)));                              // state for a list
  CHECK(is_refusal(pickle_refusal("ctorch\nSize\n)\x81}b}b."s)));          // state given twice
}

TEST_CASE("a value that is not on the list is opaque, and does not affect its neighbours") {
  const auto text = [](const std::string& value) { return "X"s + static_cast<char>(value.size()) + "\0\0\0"s + value; };
  const std::pair<std::string, const char*> cases[] = {
      {"cos\nsystem\n" + text("true") + "\x85R", "os.system"},               // REDUCE
      {"cposix\nsystem\n)\x81}" + text("lr") + "K\x01sb"s, "posix.system"},  // NEWOBJ, BUILD
      {"cown\nA\n)}" + text("key") + "K\x01s\x92"s, "own.A"},                // NEWOBJ_EX
      {"ctorch\nSize\n)}" + text("key") + "K\x01s\x92"s, "torch.Size"},      // … of a class on the list
      {"ctorch\nSize\n)R(K\x01K\x02"
       "e",
       "torch.Size"},                     // APPENDS to an object
      {"(K\x01iown\nOld\n", "own.Old"},   // INST
      {"(cown\nOld\nK\x01o", "own.Old"},  // OBJ
      {"\x82\x05", "a class that only its extension code names"},
      {"\x84\x05\0\0\0"s, "a class that only its extension code names"},
      {"\x8c\x03own\x8c\x01"
       "A\x93",
       "own.A"},  // STACK_GLOBAL, not called
      {"cfunctools\npartial\n"
       "cos\nsystem\n\x85R)R",
       "functools.partial"},  // the result of a call is called
      {"K\x01)R", "an int"},
      {"c__builtin__\nset\n](K\x01K\x02"
       "e\x85R",
       "builtins.set"},
      {"\x8f(K\x01K\x02\x90", "builtins.set"},
      {"(K\x01\x91", "builtins.frozenset"},
      {"ccopy_reg\n_reconstructor\ncown\nA\nc__builtin__\nobject\nN\x87R", "own.A"},
      {"\x8a\x09\0\0\0\0\0\0\0\0\x01"s, "an int of more than 64 bits"},
      {"L99999999999999999999L\n", "an int of more than 64 bits"},
  };
  for (const auto& [value, name] : cases) {
    const auto& shown = name;
    CAPTURE(shown);
    const auto tree = keeping("\x80\x04}(" + text("odd") + value + text("step") +
                              "K\x07"
                              "u.");
    const auto odd = tree.root().at("odd");
    CHECK(odd.is(PickleKind::kOpaque));
    CHECK(odd.opaque_name() == name);
    CHECK(tree.root().at("step").as_int() == 7);
    // Nothing takes it for something else.
    CHECK(thrown_by([&] { odd.as_int(); }).code == ErrorCode::kUnsupported);
    CHECK(thrown_by([&] { odd.as_bytes(); }).code == ErrorCode::kUnsupported);
    CHECK_FALSE(odd.is_object_of("torch", "Size"));
    CHECK(pickle_refusal("\x80\x04" + value + ".").code == ErrorCode::kUnsupported);
  }
}

TEST_CASE("an opaque value that contains itself is cut, and a malformed pickle is an error") {
  const auto tree = keeping("cown\nA\n)\x81q\x00}X\x04\x00\x00\x00selfh\x00sb."s);
  const auto state = *tree.root().state();
  CHECK(state.at("self").opaque_name() == "a value that contains itself");
  CHECK(keeping("]q\x00h\x00"s + "a.").root()[0].is(PickleKind::kOpaque));
  CHECK(thrown_by([] { keeping("K\x01K\x02\x93."s); }).code == ErrorCode::kCorrupt);  // STACK_GLOBAL of ints
  CHECK(thrown_by([] { keeping("]}b."s); }).code == ErrorCode::kCorrupt);             // BUILD of a list
  CHECK(is_refusal(thrown_by([] { keeping("(o."s); })));
  CHECK(is_refusal(thrown_by([] { keeping("\x97."s); })));
  CHECK(thrown_by([] { keeping(repeated("]", 300) + repeated("a", 299) + "."); }).says("deep"));
  CHECK(keeping("\x8fq\x00(h\x00\x90."s).root()[0].opaque_name() == "a value that contains itself");
  // A set takes a node a byte, as a list does.
  const std::string hostile = repeated("\x8f", 1 << 20);
  const AllocationMeter meter;
  const Thrown thrown = thrown_by([&] { unpickle(hostile, "a test", kKnown, kRecordPickleLimits, OpaqueValues::kKept); });
  CHECK(meter.bytes() < 60 * hostile.size());
  CHECK(thrown.code == ErrorCode::kUnsupported);
}

TEST_CASE("the names of opaque values that share parts take no more time than their pickle") {
  // Each object is called by, and an argument of, the next one.
  const auto nested = keeping("ccopy_reg\n_reconstructor\n" + repeated("q\x00h\x00\x85R"s, 90) + ".");
  CHECK(nested.root().opaque_name() == "copyreg._reconstructor");
  CHECK(keeping("cown\nA\n" + repeated(")R", 150) + ".").root().opaque_name() == "own.A");
}

TEST_CASE("nesting is bounded, and deep input neither recurses nor grows") {
  const PickleLimits limits{50, 1u << 20};
  CHECK_FALSE(pickle_refusal(repeated("]", 49) + repeated("a", 48) + ".", limits).is_error);
  const auto lists = pickle_refusal(repeated("]", 60) + repeated("a", 59) + ".", limits);
  CHECK(lists.code == ErrorCode::kUnsupported);
  CHECK(lists.says("50 deep"));
  CHECK(pickle_refusal("N" + repeated("\x85", 1'000'000) + ".").says("deep"));
  CHECK(pickle_refusal(repeated("(", 1'000'000) + ".").says("deep"));
  CHECK(pickle_refusal(repeated("]", 300'000) + repeated("a", 299'999) + ".").says("deep"));
}

TEST_CASE("a value that contains itself is refused") {
  CHECK(pickle_refusal("]q\x00h\x00"s + "a.").says("contains itself"));
  CHECK(pickle_refusal("}q\x00K\x01h\x00s."s).says("contains itself"));
  CHECK(pickle_refusal("ctorch\nSize\n)\x81q\x00h\x00"s + "b.").says("contains itself"));
  CHECK(pickle_refusal("]q\x00h\x00\x85"s + "a.").says("contains itself"));
}

TEST_CASE("sizes that promise more than there is cost nothing") {
  CHECK(pickle_refusal("X\xff\xff\xff\xff"s + "ab.").code == ErrorCode::kCorrupt);
  CHECK(pickle_refusal("\x8d\xff\xff\xff\xff\xff\xff\xff\x7f"s + "ab.").code == ErrorCode::kCorrupt);
  CHECK(pickle_refusal("\x8e\xff\xff\xff\xff\xff\xff\xff\xff."s).code == ErrorCode::kCorrupt);
  CHECK(pickle_refusal("\x95\xff\xff\xff\xff\xff\xff\xff\xff."s).code == ErrorCode::kCorrupt);
  CHECK(pickle_refusal("\x8b\xff\xff\xff\x7f."s).code == ErrorCode::kCorrupt);
  CHECK(pickle_refusal("Nr\xff\xff\xff\xff."s).is_error == false);  // a high memo slot takes one entry
}

TEST_CASE("a pickle that holds nearly a value a byte is refused, and its memory is bounded") {
  const PickleLimits limits{100, 1000};
  CHECK(pickle_refusal(repeated("]", 4000) + ".", limits).says("3000 values"));
  CHECK_FALSE(pickle_refusal(repeated("]0", 4000) + "N.", limits).is_error);
  CHECK_FALSE(pickle_refusal("(" + repeated("K\x01"s, 100'000) + "l.", limits).is_error);

  const std::string hostile = repeated("]", 1 << 20);
  const AllocationMeter meter;
  const Thrown thrown = thrown_by([&] { unpickle(hostile, "a test", kKnown, kRecordPickleLimits); });
  CHECK(meter.bytes() < 60 * hostile.size());
  CHECK(thrown.code == ErrorCode::kUnsupported);
}

TEST_CASE("the stack cannot be emptied below a mark") {
  CHECK(is_refusal(pickle_refusal("K\x01(R."s)));
  CHECK(is_refusal(pickle_refusal("0."s)));
  CHECK(is_refusal(pickle_refusal("t."s)));
  CHECK(is_refusal(pickle_refusal("."s)));
  CHECK(is_refusal(pickle_refusal("NN."s)));
  CHECK(is_refusal(pickle_refusal("(N."s)));
  CHECK(is_refusal(pickle_refusal("}(K\x01u."s)));  // a key without a value
  CHECK(is_refusal(pickle_refusal("h\x05."s)));     // an empty memo slot
  CHECK(is_refusal(pickle_refusal("](NNe"s)));
  CHECK(is_refusal(pickle_refusal("K\x01(NNe."s)));  // append to an int
}

TEST_CASE("integers of every width, and none wider than 64 bits") {
  const auto integer = [](const std::string& pickle) { return read(pickle + ".").root().as_int(); };
  CHECK(integer("K\xff"s) == 255);
  CHECK(integer("M\xff\xff"s) == 65535);
  CHECK(integer("J\xff\xff\xff\xff"s) == -1);
  CHECK(integer("J\x00\x00\x00\x80"s) == std::numeric_limits<std::int32_t>::min());
  CHECK(integer("\x8a\x00"s) == 0);
  CHECK(integer("\x8a\x01\xfe"s) == -2);
  CHECK(integer("\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f"s) == std::numeric_limits<std::int64_t>::max());
  CHECK(integer("\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80"s) == std::numeric_limits<std::int64_t>::min());
  CHECK(integer("\x8a\x0a\xff\xff\xff\xff\xff\xff\xff\x7f\x00\x00"s) == std::numeric_limits<std::int64_t>::max());
  CHECK(pickle_refusal("\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00."s).says("64 bits"));
  CHECK(pickle_refusal("\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01."s).says("64 bits"));
  CHECK(integer("I-12\n") == -12);
  CHECK(integer("L123456789012L\n") == 123456789012);
  CHECK(pickle_refusal("L99999999999999999999L\n.").says("64 bits"));
  CHECK(is_refusal(pickle_refusal("I12x\n.")));
  CHECK(read("I01\n.").root().as_bool());
}

TEST_CASE("texts are UTF-8 or refused") {
  CHECK(read("X\x03\x00\x00\x00\xe5\x90\x8d."s).root().as_text() == "\xe5\x90\x8d");
  CHECK(read("X\x03\x00\x00\x00\xed\xb3\xbf."s).root().as_text().size() == 3);  // a lone surrogate, as Python writes it
  CHECK(is_refusal(pickle_refusal("X\x02\x00\x00\x00\xc0\x80."s)));             // overlong
  CHECK(is_refusal(pickle_refusal("X\x01\x00\x00\x00\xff."s)));
  CHECK(is_refusal(pickle_refusal("X\x01\x00\x00\x00\xe5."s)));
  CHECK(is_refusal(pickle_refusal("X\x04\x00\x00\x00\xf4\x90\x80\x80."s)));  // above U+10FFFF
  CHECK(read("Va\\u00e9\\U0001f600\xe9\n.").root().as_text() == "a\xc3\xa9\xf0\x9f\x98\x80\xc3\xa9");
  CHECK(is_refusal(pickle_refusal("V\\u00g0\n.")));
  CHECK(is_refusal(pickle_refusal("V\\U00110000\n.")));
}

TEST_CASE("what the pickler writes comes back, at both protocols, and says where it ended") {
  for (const int protocol : {2, 4}) {
    const auto pickle = sample(protocol);
    const auto followed = pickle + "something else";
    const auto tree = read(followed);
    CHECK(tree.consumed_bytes() == pickle.size());
    const auto root = tree.root();
    REQUIRE(root.size() == 6);
    CHECK(root.key(0).as_text() == "step");
    CHECK(root.at("step").as_int() == 7);
    CHECK(root.at("lr").as_float() == 0.1);
    CHECK(root.at("names")[1].as_text() == "b");
    CHECK(root.at("big").as_int() == std::int64_t{1} << 40);
    CHECK(root.at("size").is_object_of("torch", "Size"));
    CHECK(root.at("size").arguments()[0][1].as_int() == 3);
    CHECK(root.at("twice").id() == root.at("names").id());
    CHECK(thrown_by([&] { root.at("missing"); }).says("\"missing\""));
    CHECK(thrown_by([&] { root.at("step").as_text(); }).says("expected a str, found an int"));
    CHECK(thrown_by([&] { root.at("size").as_int(); }).says("an object of torch.Size"));
    CHECK(thrown_by([&] { root.at("names")[2]; }).code == ErrorCode::kCorrupt);
  }
}

TEST_CASE("a key that is set twice keeps its last value") {
  const auto tree = read("}(X\x01\x00\x00\x00kK\x01X\x01\x00\x00\x00kK\x02u."s);
  CHECK(tree.root().at("k").as_int() == 2);
}
