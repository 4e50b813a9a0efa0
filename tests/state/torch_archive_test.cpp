// torch.save archives: damage, PyTorch's own output, and Cairn's output.
#include <string>
#include <vector>

#include <cairn/tests/support/plain.hpp>

#include <cairn/base/digest.hpp>
#include <cairn/formats/tensor_pickle.hpp>
#include <cairn/formats/torch_archive.hpp>
#include <cairn/formats/unpickler.hpp>
#include <cairn/formats/zip_format.hpp>
#include <cairn/tests/support/thrown.hpp>

using namespace cairn;
using namespace cairn::testing;
using namespace std::string_literals;

namespace {

const std::string kElements(24, '\x11');

std::string sample_archive() { return write_torch_archive(tensor_pickle(DType::kFloat32, {2, 3}), {kElements}); }

Thrown refusal(const std::string& bytes) {
  return thrown_by([&] {
    const TorchArchive archive(bytes, "a test");
    const auto tensor = read_archived_tensor(archive);
    archive.read_storage(tensor.description.storage_key);
  });
}

// Returns a zip archive with the given entries.
std::string zip_of(const std::vector<std::pair<std::string, std::string>>& files) {
  std::string out;
  std::vector<zip::Entry> entries;
  for (const auto& [name, data] : files) {
    entries.push_back({name, out.size(), data.size(), crc32(0, data)});
    zip::append_local_header(out, name, data.size(), 0);
    out += data;
    zip::append_descriptor(out, data.size(), entries.back().crc32);
  }
  zip::append_directory(out, entries, out.size());
  return out;
}

Thrown describing(const std::string& pickle) {
  return thrown_by([&] {
    const auto tree = unpickle(pickle, "a test", tensor_globals());
    describe_tensor(tree.root());
  });
}

// Returns the pickle of a float32 tensor on a 24-byte storage. The arguments are pickled numbers.
std::string tensor_of(const std::string& offset, const std::string& sizes, const std::string& strides) {
  return "ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x00"s +
         "0X\x03\x00\x00\x00"s + "cpuK\x06tQ"s + offset + sizes + strides + "\x89"s + "ccollections\nOrderedDict\n)RtR."s;
}

}  // namespace

TEST_CASE("what is no archive of torch.save says what it is") {
  CHECK(refusal("").code == ErrorCode::kCorrupt);
  CHECK(refusal("hello").says("not an archive of torch.save"));
  const auto legacy = refusal("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03."s);
  CHECK(legacy.code == ErrorCode::kUnsupported);
  CHECK(legacy.says("PyTorch 1.6"));
  CHECK(refusal(zip_of({{"readme.txt", "x"}})).says("not of torch.save"));
  CHECK(refusal(zip_of({{"a/data.pkl", "N."}})).says("no version"));
  CHECK(refusal(zip_of({{"a/data.pkl", "N."}, {"a/version", "11\n"}})).code == ErrorCode::kUnsupported);
  CHECK(refusal(zip_of({{"a/data.pkl", "N."}, {"a/version", "x\n"}})).code == ErrorCode::kCorrupt);
  CHECK(refusal(zip_of({{"a/data.pkl", "N."}, {"a/version", "3\n"}, {"a/byteorder", "big"}})).says("big-endian"));
  CHECK(refusal(zip_of({{"a/data.pkl", "N."}, {"a/version", "3\n"}, {"a/constants.pkl", "N."}})).says("TorchScript"));
  CHECK(refusal(zip_of({{"a/data.pkl", "N."}, {"a/version", "3\n"}})).says("expected a tensor, found None"));
  CHECK(refusal(zip_of({{"a/version", "3\n"}})).says("data.pkl"));
  CHECK(refusal(zip_of({{"a/x", "1"}, {"a/x", "2"}, {"a/version", "3\n"}})).says("twice"));
}

TEST_CASE("compressed and encrypted entries are refused") {
  auto compressed = sample_archive();
  const auto directory = compressed.find("PK\x01\x02");
  compressed[directory + 10] = 8;
  CHECK(refusal(compressed).says("compressed"));
  auto encrypted = sample_archive();
  encrypted[directory + 8] = static_cast<char>(encrypted[directory + 8] | 1);
  CHECK(refusal(encrypted).says("encrypted"));
}

TEST_CASE("a tensor never reaches beyond its storage") {
  CHECK_FALSE(describing(tensor_of("K\x00"s, "K\x02K\x03\x86", "K\x03K\x01\x86")).is_error);
  CHECK_FALSE(describing(tensor_of("K\x05"s, "K\x01\x85", "K\x01\x85")).is_error);
  CHECK_FALSE(describing(tensor_of("K\xff"s, "K\x00\x85"s, "K\x01\x85")).is_error);              // empty: reads no element
  CHECK_FALSE(describing(tensor_of("K\x00"s, "J\xff\xff\xff\x7f\x85", "K\x00\x85"s)).is_error);  // expanded: one element
  CHECK(is_refusal(describing(tensor_of("K\x01"s, "K\x02K\x03\x86", "K\x03K\x01\x86"))));
  CHECK(is_refusal(describing(tensor_of("K\x06"s, ")", ")"))));
  CHECK(is_refusal(describing(tensor_of("K\x00"s, "K\x02K\x03\x86", "K\x04K\x01\x86"))));
  CHECK(is_refusal(describing(tensor_of("K\x00"s, "K\x02K\x03\x86", "K\x01\x85"))));
  CHECK(is_refusal(describing(tensor_of("J\xff\xff\xff\xff", "K\x01\x85", "K\x01\x85"))));
  CHECK(is_refusal(describing(tensor_of("K\x00"s, "J\xff\xff\xff\xff\x85", "K\x01\x85"))));
  CHECK(is_refusal(describing(tensor_of("K\x00"s, "K\x02\x85", "J\xff\xff\xff\xff\x85"))));
  const auto huge = "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f"s;
  CHECK(is_refusal(describing(tensor_of(huge, "K\x02\x85", "K\x01\x85"))));
  CHECK(is_refusal(describing(tensor_of("K\x00"s, huge + huge + "\x86", "K\x00K\x00\x86"s))));
  CHECK(is_refusal(describing(tensor_of("K\x00"s, "K\x02\x85", huge + "\x85"))));
}

TEST_CASE("the pickle of one tensor is not read where it is far longer than any") {
  const TorchArchive archive(write_torch_archive(std::string(2 << 20, ']') + ".", {}), "archive");
  CHECK(thrown_by([&] { read_archived_tensor(archive); }) == Saying{ErrorCode::kUnsupported, "its pickle has 2097153 bytes"});
}

TEST_CASE("tensors of other kinds are refused by name") {
  CHECK(describing("ctorch._utils\n_rebuild_sparse_tensor\n)R.").says("torch._utils._rebuild_sparse_tensor"));
  CHECK(describing("ctorch\nQInt8Storage\n.").says("torch.QInt8Storage"));
}

TEST_CASE("a large archive is read at its two ends only") {
  const std::string elements(1 << 20, '\x22');
  const auto bytes = write_torch_archive(tensor_pickle(DType::kUInt8, {1 << 20}), {elements});
  std::uint64_t read = 0;
  const TorchArchive archive(
      bytes.size(),
      [&](std::uint64_t offset, MutableByteSpan destination) {
        read += destination.size();
        bytes.copy(destination.data(), destination.size(), offset);
      },
      "a test");
  CHECK(read_archived_tensor(archive).storage.size_bytes == elements.size());
  CHECK(read < 80'000);
}
