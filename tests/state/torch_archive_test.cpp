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

TEST_CASE("no flipped bit does harm, and none in the elements or the pickle passes") {
  const auto whole = sample_archive();
  const auto elements = whole.find(kElements);
  const auto pickle = whole.find("\x80\x02"s + "c");
  for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
    auto flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    const auto thrown = refusal(flipped);
    REQUIRE((!thrown.is_error || is_refusal(thrown)));
    const bool is_content =
        (bit / 8 >= elements && bit / 8 < elements + kElements.size()) || (bit / 8 >= pickle && bit / 8 < pickle + 100);
    if (is_content) REQUIRE(thrown.code == ErrorCode::kCorrupt);
  }
}

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

TEST_CASE("what is written comes back, from memory and by ranges") {
  const auto bytes = sample_archive();
  std::size_t reads = 0;
  const TorchArchive by_ranges(
      bytes.size(),
      [&](std::uint64_t offset, MutableByteSpan destination) {
        ++reads;
        REQUIRE(offset + destination.size() <= bytes.size());
        bytes.copy(destination.data(), destination.size(), offset);
      },
      "a test");
  const TorchArchive in_memory(bytes, "a test");
  for (const auto* archive : {&by_ranges, &in_memory}) {
    const auto tensor = read_archived_tensor(*archive);
    CHECK(tensor.description.dtype == DType::kFloat32);
    CHECK((tensor.description.sizes == Extents{2, 3}));
    CHECK((tensor.description.strides == Extents{3, 1}));
    CHECK(tensor.description.is_contiguous());
    CHECK(tensor.storage.size_bytes == 24);
    CHECK(tensor.storage.offset % 64 == 0);
    CHECK(tensor.storage.crc32 == crc32(0, kElements));
    CHECK(archive->read_storage("0") == kElements);
    CHECK(bytes.substr(tensor.storage.offset, 24) == kElements);
    CHECK(thrown_by([&] { archive->storage("1"); }).code == ErrorCode::kCorrupt);
  }
  CHECK(reads == 1);  // a small archive is read all at once
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

TEST_CASE("every dtype has a storage, and comes back") {
  for (std::uint8_t value = 1; value <= kDTypeCount; ++value) {
    const auto dtype = static_cast<DType>(value);
    CAPTURE(to_string(dtype));
    const std::string elements(3 * element_size(dtype), '\x01');
    const auto bytes = write_torch_archive(tensor_pickle(dtype, {3, 1}), {elements});
    const auto tensor = read_archived_tensor(TorchArchive(bytes, "a test"));
    CHECK(tensor.description.dtype == dtype);
    CHECK(tensor.description.storage_bytes == elements.size());
  }
}

TEST_CASE("contiguous means row-major without holes") {
  TensorDescription tensor;
  const auto with = [&](Extents sizes, Extents strides) {
    tensor.sizes = std::move(sizes);
    tensor.strides = std::move(strides);
    return tensor.is_contiguous();
  };
  CHECK(with({}, {}));
  CHECK(with({2, 3}, {3, 1}));
  CHECK(with({2, 1, 3}, {3, 77, 1}));
  CHECK(with({0, 3}, {9, 9}));
  CHECK_FALSE(with({2, 3}, {1, 2}));
  CHECK_FALSE(with({2, 3}, {6, 2}));
  CHECK_FALSE(with({2}, {0}));
}
