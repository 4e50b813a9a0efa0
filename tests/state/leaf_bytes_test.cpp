// Leaves as torch.save archives: rejected values, round trips, and PyTorch's own output.
#include <cmath>
#include <limits>
#include <string>

#include <cairn/tests/support/torch.hpp>

#include <cairn/base/digest.hpp>
#include <cairn/formats/saved_value.hpp>
#include <cairn/formats/torch_archive.hpp>
#include <cairn/state/leaf_bytes.hpp>
#include <cairn/state/planner.hpp>
#include <cairn/state/staged_values.hpp>
#include <cairn/state/tensor_types.hpp>
#include <cairn/tests/messages/allocation_meter.hpp>
#include <cairn/tests/support/thrown.hpp>

using namespace cairn;
using namespace cairn::testing;
using namespace std::string_literals;

namespace {

Value round_trip(const Value& value) {
  const Bytes bytes = serialize_leaf(value);
  const Value read = deserialize_leaf(bytes);
  // Without LibTorch, what was read gives the same pickle.
  const Bytes again = serialize_leaf(read);
  const SavedValue saved = saved_value(TorchArchive(bytes, "a value"));
  CHECK(pickle_leaf(saved, BlobsAs::kOwnType).pickle == TorchArchive(again, "the same").pickle());
  return read;
}

// Returns the archive that torch.save would make from a pickle without tensors.
std::string archive_of(const std::string& pickle, const std::vector<ByteSpan>& storages = {}) {
  return write_torch_archive(pickle, storages);
}

Value reading(const std::string& pickle) { return deserialize_leaf(archive_of(pickle)); }

Thrown leaf_refusal(const std::string& pickle) {
  return thrown_by([&] { reading(pickle); });
}

c10::IValue tuple_of(std::vector<c10::IValue> elements) { return c10::ivalue::Tuple::create(std::move(elements)); }

bool same_tensor(const torch::Tensor& a, const torch::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && torch::equal(a, b);
}

}  // namespace

TEST_CASE("values that Python or LibTorch cannot hold are refused by name") {
  CHECK(leaf_refusal("\x80\x02"s + "c__builtin__\nset\n]\x85R.").says("builtins.set"));
  CHECK(leaf_refusal("\x80\x02"s + "cos\nsystem\n(X\x04\x00\x00\x00truetR."s).says("os.system"));
  CHECK(leaf_refusal("cnumpy.core.multiarray\n_reconstruct\n.").says("numpy.core.multiarray._reconstruct"));
  CHECK(leaf_refusal("ctorch._tensor\n_rebuild_from_type_v2\n.").says("torch._tensor._rebuild_from_type_v2"));
  CHECK(leaf_refusal("\x80\x02\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00."s).says("64 bits"));
  CHECK(leaf_refusal("ctorch\nfloat_power\n."s).says("torch.float_power itself"));
  CHECK(leaf_refusal("ctorch\nfloat_power\nK\x02\x85R\x85."s).says("an object of torch.float_power"));
  CHECK(leaf_refusal("\x80\x04\x8c\x05torch\x8c\x0a"s + "float8\nos\n" + "\x93.").code == ErrorCode::kUnsupported);
  CHECK(leaf_refusal("}G\x3f\xf8\x00\x00\x00\x00\x00\x00Ns."s).says("as a key"));
  const auto legacy = thrown_by([] { deserialize_leaf("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."s); });
  CHECK(legacy.code == ErrorCode::kUnsupported);
  CHECK(thrown_by([] { deserialize_leaf("PK\x03\x04"s); }).code == ErrorCode::kCorrupt);

  CHECK(thrown_by([] { serialize_leaf(ShardedTensor({4}, DType::kFloat32, {})); }).code == ErrorCode::kUnsupported);
  CHECK(thrown_by([] { serialize_leaf(c10::IValue(c10::Storage())); }).code == ErrorCode::kUnsupported);
  const auto sparse = torch::eye(3).to_sparse();
  CHECK(thrown_by([&] { serialize_leaf(tuple_of({sparse})); }).says("sparse"));
  CHECK(thrown_by([&] { serialize_leaf(tuple_of({std::string("\xff")})); }).code == ErrorCode::kInvalidArgument);
}

TEST_CASE("lists that contain themselves or nest without end are refused") {
  c10::impl::GenericList list(c10::AnyType::get());
  list.push_back(list);
  CHECK(thrown_by([&] { serialize_leaf(tuple_of({list})); }).says("contains itself"));
  list.clear();  // breaks the cycle, so that the list is freed
  c10::IValue deep = std::int64_t{1};
  for (int i = 0; i < 150; ++i) deep = tuple_of({deep});
  CHECK(thrown_by([&] { serialize_leaf(deep); }).says("deep"));
}

TEST_CASE("a bomb of shared values is refused or stays shared") {
  // x0 = [b"…"]; x(n+1) = [x(n), x(n)]. A List is a value, so reading would expand these.
  auto nested = "]C\x01x"s + "a";
  for (int i = 0; i < 60; ++i) nested += "q\x01"s + "0]h\x01"s + "ah\x01"s + "a";
  CHECK(leaf_refusal(nested + ".").says("more memory"));
  // A tuple is a reference, so 61 tuples represent 2^60 places.
  auto tuples = "K\x01\x85"s;
  for (int i = 0; i < 60; ++i) tuples += "2\x86";
  const auto value = reading(tuples + ".");
  const auto& elements = value.ivalue().toTupleRef().elements();
  CHECK(elements[0].is(elements[1]));
}

TEST_CASE("a pickle whose bytes are all containers is refused before they fill the memory") {
  constexpr std::size_t kCount = 2'000'000;
  for (const char container : {']', '}'}) {
    const std::string containers(kCount, container);
    for (const auto& pickle : {"("s + containers + "t.", "]("s + containers + "e."}) {
      CHECK(leaf_refusal(pickle).says("more memory"));
    }
  }
  // The smallest pairs that Python writes are not refused.
  std::string pairs;
  for (std::size_t i = 0; i < kCount / 4; ++i) pairs += "K\x01K\x02\x86";
  CHECK(reading("("s + pairs + "t.").ivalue().toTupleRef().elements().size() == kCount / 4);
}

TEST_CASE("plain values come back as they were") {
  CHECK(round_trip(Value()).is_none());
  CHECK(round_trip(true).to_bool() == true);
  CHECK(round_trip(false).ivalue().isBool());
  CHECK(round_trip(std::int64_t{-5}).to_int() == -5);
  CHECK(round_trip(std::numeric_limits<std::int64_t>::min()).to_int() == std::numeric_limits<std::int64_t>::min());
  CHECK(round_trip(0.1).ivalue() == c10::IValue(0.1));
  CHECK(std::isnan(round_trip(std::nan("")).to_double()));
  CHECK(round_trip("名前").to_text() == "名前");
  CHECK(round_trip("").to_text().empty());
  CHECK(round_trip(c10::IValue(c10::complex<double>(1, -2))).ivalue() == c10::IValue(c10::complex<double>(1, -2)));
  CHECK(round_trip(c10::IValue(c10::Device(c10::kCPU))).ivalue() == c10::IValue(c10::Device(c10::kCPU)));
  CHECK(round_trip(c10::IValue(c10::Device(c10::kCUDA, 1))).ivalue() == c10::IValue(c10::Device(c10::kCUDA, 1)));
  const auto tuple = tuple_of({std::int64_t{1}, 2.5, std::string("x"), c10::IValue(), tuple_of({}), tuple_of({true})});
  CHECK(round_trip(tuple).ivalue() == tuple);
}

TEST_CASE("lists keep their LibTorch type") {
  const c10::IValue ints(c10::List<std::int64_t>({1, 2, 3, 4}));
  const c10::IValue doubles(c10::List<double>({0.1, 0.01}));
  const c10::IValue texts(c10::List<std::string>({"a", "b", "a"}));
  const c10::IValue bools(c10::List<bool>({true, false}));
  c10::List<c10::List<std::int64_t>> nested;
  nested.push_back(c10::List<std::int64_t>({1}));
  nested.push_back(c10::List<std::int64_t>({2, 3}));
  for (const auto& list : {ints, doubles, texts, bools, c10::IValue(nested)}) CHECK(round_trip(list).ivalue() == list);
  CHECK(round_trip(doubles).ivalue().toDoubleVector() == std::vector<double>{0.1, 0.01});

  c10::impl::GenericList mixed(c10::AnyType::get());
  mixed.push_back(std::int64_t{1});
  mixed.push_back(2.5);
  mixed.push_back(c10::IValue());
  mixed.push_back(std::string("x"));
  CHECK(round_trip(c10::IValue(mixed)).ivalue() == c10::IValue(mixed));
}

TEST_CASE("one list in two places is one list again") {
  const c10::IValue list(c10::List<std::int64_t>({1, 2}));
  const auto back = round_trip(tuple_of({list, list}));
  const auto& elements = back.ivalue().toTupleRef().elements();
  CHECK(elements[0].is(elements[1]));
}

TEST_CASE("dicts, Lists and bytes come back nested") {
  CHECK(round_trip(Dict{}).dict().empty());
  CHECK(round_trip(List{}).list().empty());
  CHECK(round_trip(Blob{"a\0\xff"s}).blob().bytes == "a\0\xff"s);
  CHECK(round_trip(Blob{}).blob().bytes.empty());
  CHECK(round_trip(Blob{std::string(70'000, 'x')}).blob().bytes.size() == 70'000);
  const auto value = round_trip(Dict{{"b", List{Blob{"x"}, 1}}, {"a", Dict{{"t", torch::arange(3)}, {"n", Value()}}}});
  CHECK(value.dict().begin()->first == "b");  // the order is kept
  CHECK(value["b"].list()[0].blob().bytes == "x");
  CHECK(value["b"].list()[1].to_int() == 1);
  CHECK(same_tensor(value["a"]["t"].tensor(), torch::arange(3)));
  CHECK(value["a"]["n"].is_none());
  // A List of plain values becomes a plain list.
  CHECK(round_trip(List{0.1, 0.01}).ivalue() == c10::IValue(c10::List<double>({0.1, 0.01})));
}

TEST_CASE("bytes and a torch.Size keep their Python types, also in tuples") {
  const auto ordered = "X\x06\x00\x00\x00latin1\x86R"s;
  const std::pair<std::string, BytesType> cases[] = {
      {"\x80\x04"
       "C\x01x",
       BytesType::kBytes},
      {"c_codecs\nencode\nX\x01\x00\x00\x00x"s + ordered, BytesType::kBytes},
      {"c__builtin__\nbytes\n)R", BytesType::kBytes},
      {"c__builtin__\nbytearray\nc_codecs\nencode\nX\x01\x00\x00\x00x"s + ordered + "\x85R", BytesType::kByteArray},
      {"c__builtin__\nbytearray\n)R", BytesType::kByteArray},
      {"c__builtin__\nbytearray\nX\x01\x00\x00\x00xX\x07\x00\x00\x00latin-1\x86R"s, BytesType::kByteArray},  // Python 3.7
      {"\x80\x05\x96\x01\0\0\0\0\0\0\0x"s, BytesType::kByteArray},
      {"c_io\nBytesIO\n)\x81(C\x01xK\x00Ntb"s, BytesType::kBytesIO},
  };
  for (const auto& [pickle, type] : cases) {
    const auto& shown = pickle;
    CAPTURE(shown);
    const auto value = reading(pickle + ".");
    CHECK(value.blob().type == type);
    CHECK(round_trip(value).blob().type == type);
    CHECK(round_trip(value).blob() == value.blob());
    const auto tuple = reading("(" + pickle + "K\x01t.");
    Value staged = tuple;
    copy_plain_values(staged);
    for (const Value& one : {tuple, staged, round_trip(staged)}) {
      const auto blob = blob_in(one.ivalue().toTupleRef().elements()[0]);
      REQUIRE(blob);
      CHECK(blob->type == type);
      CHECK(*blob == value.blob());
    }
  }
  for (const char* const sizes : {"K\x02K\x03\x86", ")"}) {
    const auto size = reading("ctorch\nSize\n"s + sizes + "\x85R.");
    Value staged{tuple_of({size.ivalue(), tuple_of({std::int64_t{2}, std::int64_t{3}})})};
    copy_plain_values(staged);
    const auto back = round_trip(staged);
    CHECK(is_torch_size(size.ivalue()));
    CHECK(is_torch_size(back.ivalue().toTupleRef().elements()[0]));
    CHECK_FALSE(is_torch_size(back.ivalue().toTupleRef().elements()[1]));
  }
}

TEST_CASE("dicts inside tuples") {
  c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
  dict.insert("k", std::int64_t{1});
  dict.insert("l", 2.0);
  c10::impl::GenericDict numbered(c10::IntType::get(), c10::AnyType::get());
  numbered.insert(std::int64_t{7}, std::string("x"));
  const auto tuple = tuple_of({dict, numbered});
  CHECK(round_trip(tuple).ivalue() == tuple);
}

TEST_CASE("PyTorch's spellings of sizes, dtypes, parameters, bytes and storages are read") {
  CHECK(reading("ctorch\nSize\nK\x01K\x02\x86\x85R."s).ivalue() == tuple_of({std::int64_t{1}, std::int64_t{2}}));
  CHECK(reading("ctorch\ndevice\nX\x03\x00\x00\x00"s + "cpu\x85R.").ivalue() == c10::IValue(c10::Device(c10::kCPU)));
  CHECK(reading("c__builtin__\nbytearray\nc_codecs\nencode\nX\x03\x00\x00\x00"s + "a\xc3\xbfX\x06\x00\x00\x00latin1\x86R\x85R."s)
            .blob()
            .bytes == "a\xff"s);
  const auto ordered = reading("ccollections\nOrderedDict\n)R(X\x01\x00\x00\x00zK\x01X\x01\x00\x00\x00yK\x02u."s);
  CHECK(ordered.dict().begin()->first == "z");
  CHECK(ordered["y"].to_int() == 2);

  // (view, parameter, conjugated): all share one storage of four complex numbers.
  const float numbers[] = {1, 2, 3, 4, 5, 6, 7, 8};
  const auto tensor = [](const std::string& offset, const std::string& flags) {
    return "ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nComplexFloatStorage\nX\x01\x00\x00\x00"s +
           "0X\x03\x00\x00\x00"s + "cpuK\x04tQ" + offset + "K\x02\x85K\x02\x85\x89"s + "ccollections\nOrderedDict\n)R" + flags +
           "tR";
  };
  const auto pickle = "("s + tensor("K\x01", "") + "ctorch._utils\n_rebuild_parameter\n" + tensor("K\x00"s, "") + "\x88"s +
                      "ccollections\nOrderedDict\n)R\x87R" + tensor("K\x00"s, "}X\x04\x00\x00\x00"s + "conj\x88s") + "t.";
  const auto value = deserialize_leaf(archive_of(pickle, {ByteSpan(numbers, sizeof numbers)}));
  const auto& elements = value.ivalue().toTupleRef().elements();
  using Complex = c10::complex<float>;
  CHECK(elements[0].toTensor()[1].item<Complex>() == Complex(7, 8));
  CHECK(elements[0].toTensor().storage().data() == elements[1].toTensor().storage().data());
  CHECK(elements[1].toTensor().requires_grad());
  CHECK(elements[2].toTensor()[1].item<Complex>() == Complex(5, -6));
}

TEST_CASE("a tensor that claims more elements than are stored shares them") {
  const float one = 1;
  const auto pickle = "ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x00"s +
                      "0X\x03\x00\x00\x00"s + "cpuK\x01tQK\x00J\xff\xff\xff\x7f\x85K\x00\x85\x89"s +
                      "ccollections\nOrderedDict\n)RtR.";
  const auto value = deserialize_leaf(archive_of(pickle, {ByteSpan(&one, sizeof one)}));
  CHECK(value.tensor().numel() == 0x7fffffff);
  CHECK(value.tensor().storage().nbytes() == sizeof one);
  CHECK(thrown_by([&] { deserialize_leaf(archive_of(pickle, {ByteSpan(&one, 2)})); }).code == ErrorCode::kCorrupt);
  CHECK(thrown_by([&] { deserialize_leaf(archive_of(pickle)); }).code == ErrorCode::kCorrupt);
}

TEST_CASE("the bytes of plain leaves are pinned") {
  CHECK(to_hex(sha256(serialize_leaf(tuple_of({std::int64_t{1}, std::string("x"), torch::arange(3)})))) ==
        "6b00a153f3c8aa3bbc7443564c72fc06aeeb6a28b72becc8753f43eab602c6cb");
}
