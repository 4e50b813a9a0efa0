// The pickler produces exactly Python's bytes where they matter.
#include <limits>
#include <string>

#include <cairn/tests/support/plain.hpp>

#include <cairn/formats/pickler.hpp>
#include <cairn/formats/tensor_pickle.hpp>
#include <cairn/formats/unpickler.hpp>
#include <cairn/tests/support/thrown.hpp>

using namespace cairn;
using namespace cairn::testing;
using namespace std::string_literals;

namespace {

std::string one(int protocol, void (*write)(Pickler&)) {
  Pickler out(protocol);
  write(out);
  return std::move(out).finish();
}

}  // namespace

TEST_CASE("a text that Python could not read is refused") {
  CHECK(thrown_by([] { one(4, [](Pickler& out) { out.text("a\xff"); }); }).code == ErrorCode::kInvalidArgument);
}

TEST_CASE("scalars are written as CPython writes them") {
  CHECK(one(2, [](Pickler& out) { out.integer(255); }) == "\x80\x02K\xff."s);
  CHECK(one(2, [](Pickler& out) { out.integer(256); }) == "\x80\x02M\x00\x01."s);
  CHECK(one(2, [](Pickler& out) { out.integer(65536); }) == "\x80\x02J\x00\x00\x01\x00."s);
  CHECK(one(2, [](Pickler& out) { out.integer(-1); }) == "\x80\x02J\xff\xff\xff\xff."s);
  CHECK(one(2, [](Pickler& out) { out.integer(0x80000000); }) == "\x80\x02\x8a\x05\x00\x00\x00\x80\x00."s);
  CHECK(one(2, [](Pickler& out) { out.integer(-0x80000001LL); }) == "\x80\x02\x8a\x05\xff\xff\xff\x7f\xff."s);
  CHECK(one(2, [](Pickler& out) { out.integer(std::numeric_limits<std::int64_t>::min()); }) ==
        "\x80\x02\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80."s);
  CHECK(one(2, [](Pickler& out) { out.real(1.5); }) == "\x80\x02G\x3f\xf8\x00\x00\x00\x00\x00\x00."s);
  CHECK(one(2, [](Pickler& out) { out.text("ab"); }) == "\x80\x02X\x02\x00\x00\x00"s + "abq\x00."s);
  CHECK(one(4, [](Pickler& out) { out.text("ab"); }) == "\x80\x04\x8c\x02"s + "ab\x94."s);
  CHECK(one(2, [](Pickler& out) { out.bytes("a\xff"s); }) ==
        "\x80\x02"s + "c_codecs\nencode\nq\x00X\x03\x00\x00\x00"s + "a\xc3\xbfq\x01X\x06\x00\x00\x00latin1q\x02\x86R."s);
  CHECK(one(2, [](Pickler& out) { out.global("builtins", "complex"); }) == "\x80\x02"s + "c__builtin__\ncomplex\nq\x00."s);
}

TEST_CASE("every integer comes back") {
  for (int shift = 0; shift < 64; ++shift) {
    for (const std::int64_t delta : {-1, 0, 1}) {
      const auto magnitude = static_cast<std::int64_t>((std::uint64_t{1} << shift) + static_cast<std::uint64_t>(delta));
      for (const auto value : {magnitude, static_cast<std::int64_t>(0 - static_cast<std::uint64_t>(magnitude))}) {
        Pickler out(2);
        out.integer(value);
        const auto pickle = std::move(out).finish();
        REQUIRE(unpickle(pickle, "a test", {}).root().as_int() == value);
      }
    }
  }
}

TEST_CASE("a tensor's pickle is byte for byte what torch.save writes") {
  // torch.save(torch.arange(6.).reshape(2, 3)) of PyTorch 2.14.
  const auto expected = "\x80\x02"s + "ctorch._utils\n_rebuild_tensor_v2\nq\x00((X\x07\x00\x00\x00storageq\x01"s +
                        "ctorch\nFloatStorage\nq\x02X\x01\x00\x00\x00"s + "0q\x03X\x03\x00\x00\x00"s +
                        "cpuq\x04K\x06tq\x05QK\x00K\x02K\x03\x86q\x06K\x03K\x01\x86q\x07\x89"s +
                        "ccollections\nOrderedDict\nq\x08)Rq\x09tq\x0aRq\x0b."s;
  CHECK(tensor_pickle(DType::kFloat32, {2, 3}) == expected);
  // torch.save(torch.tensor(3.)): no sizes, no strides, fewer memo slots.
  const auto scalar = "\x80\x02"s + "ctorch._utils\n_rebuild_tensor_v2\nq\x00((X\x07\x00\x00\x00storageq\x01"s +
                      "ctorch\nFloatStorage\nq\x02X\x01\x00\x00\x00"s + "0q\x03X\x03\x00\x00\x00"s +
                      "cpuq\x04K\x01tq\x05QK\x00))\x89"s + "ccollections\nOrderedDict\nq\x06)Rq\x07tq\x08Rq\x09."s;
  CHECK(tensor_pickle(DType::kFloat32, {}) == scalar);
  // torch.save(torch.zeros(2).to(torch.uint16)): an untyped storage, whose size is in bytes.
  const auto untyped = "\x80\x02"s + "ctorch._utils\n_rebuild_tensor_v3\nq\x00((X\x07\x00\x00\x00storageq\x01"s +
                       "ctorch.storage\nUntypedStorage\nq\x02X\x01\x00\x00\x00"s + "0q\x03X\x03\x00\x00\x00"s +
                       "cpuq\x04K\x04tq\x05QK\x00K\x02\x85q\x06K\x01\x85q\x07\x89"s + "ccollections\nOrderedDict\nq\x08)Rq\x09"s +
                       "ctorch\nuint16\nq\x0atq\x0bRq\x0c."s;
  CHECK(tensor_pickle(DType::kUInt16, {2}) == untyped);
}
