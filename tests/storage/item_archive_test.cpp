// Stored items: lengths that are known before the bytes, payload positions, and archives that read
// back; their places in files, and trailers.
#include <limits>
#include <string>

#include <cairn/tests/support/plain.hpp>

#include <cairn/base/digest.hpp>
#include <cairn/formats/item_archive.hpp>
#include <cairn/formats/torch_archive.hpp>
#include <cairn/formats/zip_format.hpp>
#include <cairn/storage/format/file_layout.hpp>
#include <cairn/storage/format/trailer.hpp>
#include <cairn/tests/support/thrown.hpp>

using namespace cairn;
using namespace cairn::testing;

namespace {

const Extents kShapes[] = {{}, {0}, {1}, {0, 4}, {2, 3}, {16384}, {128, 128}, {1, 2, 3, 4, 5}, {100, 300}};
const std::uint64_t kOffsets[] = {0, 1, 63, 64, 4095, 4096, 1'000'003, (std::uint64_t{1} << 32) - 7, (std::uint64_t{1} << 40) + 5};

std::string item(DType dtype, const Extents& sizes, std::uint64_t offset, const std::string& payload) {
  return item_prefix(dtype, sizes, offset) + payload + item_suffix(dtype, sizes, offset, crc32(0, payload));
}

std::string payload_of(std::uint64_t bytes) {
  std::string payload(bytes, '\0');
  for (std::size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<char>(i * 7 + i / 256);
  return payload;
}

void add_tensor(SavePlan& plan, const std::string& name, Extents sizes, DType dtype = DType::kFloat32) {
  WriteItem item;
  item.name = plan.names.intern(name);
  item.type = WriteItemType::kTensor;
  item.properties.dtype = dtype;
  item.size = sizes;
  item.chunk = Box::whole(sizes);
  plan.items.push_back(item);
}

void add_bytes(SavePlan& plan, const std::string& name) {
  WriteItem item;
  item.name = plan.names.intern(name);
  plan.items.push_back(item);
}

Trailer example() {
  Trailer trailer;
  trailer.save_id = "0123-a-1";
  trailer.content_bytes = kChecksumBlockBytes + 100;
  trailer.block_crc32 = {0xDEADBEEF, 7};
  return trailer;
}

ErrorCode code_of_trailer(const Bytes& bytes, std::uint64_t file_bytes) {
  return thrown_by([&] { decode_trailer(bytes, file_bytes, "file"); }).code;
}

}  // namespace

TEST_CASE("layout: a tensor that no file can hold is refused") {
  SavePlan plan;
  add_tensor(plan, "huge", {std::int64_t{1} << 60});
  add_tensor(plan, "huge too", {std::int64_t{1} << 60});
  CHECK_THROWS_AS(layout_files(plan, true), Error);
}

TEST_CASE("layout: bytes objects must be reported as planned") {
  SavePlan plan;
  add_bytes(plan, "a");
  add_bytes(plan, "b");
  const FileLayout file = layout_files(plan, true).at(0);
  CHECK_THROWS_AS(place_unsized(file, {1}), Error);
  CHECK_THROWS_AS(place_unsized(file, {1, 2, 3}), Error);
  CHECK_THROWS_AS(place_unsized(file, {1, std::numeric_limits<std::uint64_t>::max()}), Error);
  const auto placed = place_unsized(file, {5, 7});
  REQUIRE(placed.size() == 2);
  CHECK(placed[0].offset == 0);
  CHECK(placed[1].offset == 5);
  CHECK(placed[1].length == 7);
}

TEST_CASE("an item has its layout's length, an aligned payload, and is a readable archive") {
  for (const auto dtype : {DType::kFloat32, DType::kBool, DType::kComplex128, DType::kBFloat16, DType::kFloat8E4M3Fn}) {
    for (const auto& sizes : kShapes) {
      for (const auto offset : kOffsets) {
        CAPTURE(to_string(dtype));
        CAPTURE(to_string(sizes));
        CAPTURE(offset);
        const auto layout = item_layout(dtype, sizes, offset);
        const auto payload = payload_of(static_cast<std::uint64_t>(volume(sizes)) * element_size(dtype));
        REQUIRE(layout.payload_bytes == payload.size());
        REQUIRE(item_prefix(dtype, sizes, offset).size() == layout.prefix_bytes);
        REQUIRE(item_suffix(dtype, sizes, offset, 0).size() == layout.suffix_bytes);
        const auto alignment = payload.size() >= kLargePayloadBytes ? kLargePayloadAlignment : kSmallPayloadAlignment;
        REQUIRE((offset + layout.prefix_bytes) % alignment == 0);

        const auto bytes = item(dtype, sizes, offset, payload);
        const TorchArchive archive(bytes, "an item");
        const auto tensor = read_archived_tensor(archive);
        REQUIRE(tensor.description.dtype == dtype);
        REQUIRE((tensor.description.sizes == sizes));
        REQUIRE(tensor.description.is_contiguous());
        REQUIRE(tensor.storage.offset == layout.prefix_bytes);
        REQUIRE(archive.read_storage("0") == payload);
      }
    }
  }
}

TEST_CASE("items above 4 GiB use zip64, on both sides of the limit") {
  constexpr std::int64_t kLimit = 0xffffffff;
  for (const std::int64_t bytes : {kLimit - 1, kLimit, kLimit + 1, std::int64_t{5} << 32}) {
    for (const std::uint64_t offset : {std::uint64_t{0}, std::uint64_t{1} << 33}) {
      CAPTURE(bytes);
      const Extents sizes{bytes};
      const auto layout = item_layout(DType::kUInt8, sizes, offset);
      const auto prefix = item_prefix(DType::kUInt8, sizes, offset);
      const auto suffix = item_suffix(DType::kUInt8, sizes, offset, 0x12345678);
      REQUIRE(prefix.size() == layout.prefix_bytes);
      REQUIRE(suffix.size() == layout.suffix_bytes);
      REQUIRE((offset + prefix.size()) % kLargePayloadAlignment == 0);
      // The payload is never allocated: a reader that returns zeros stands in for it.
      const TorchArchive archive(
          layout.total_bytes(),
          [&](std::uint64_t at, MutableByteSpan destination) {
            for (std::size_t i = 0; i < destination.size(); ++i) {
              const auto position = at + i;
              destination.data()[i] = position < prefix.size() ? prefix[position]
                                      : position < prefix.size() + layout.payload_bytes
                                          ? '\0'
                                          : suffix[position - prefix.size() - layout.payload_bytes];
            }
          },
          "an item");
      const auto tensor = read_archived_tensor(archive);
      CHECK(tensor.storage.offset == prefix.size());
      CHECK(tensor.storage.size_bytes == static_cast<std::uint64_t>(bytes));
      CHECK(tensor.storage.crc32 == 0x12345678);
    }
  }
}

TEST_CASE("the bytes of an item are pinned") {
  // Readers of every version rely on these bytes. A change needs a new format version.
  const auto bytes = item(DType::kFloat32, {2, 3}, 100, payload_of(24));
  CHECK(bytes.size() == 796);
  CHECK(to_hex(sha256(bytes)) == "8a3dfaef2a9ff5e06dc004f4524b06f237effe15c792bdae9543cbe9e43bb158");
}

TEST_CASE("trailer: a short, long or displaced one is found") {
  const Bytes whole = encode_trailer(example());
  const std::uint64_t content = example().content_bytes;
  for (std::size_t length = 0; length < whole.size(); ++length) {
    CHECK(code_of_trailer(whole.substr(0, length), content + length) == ErrorCode::kCorrupt);
    CHECK(code_of_trailer(whole.substr(whole.size() - length), content + length) == ErrorCode::kCorrupt);
  }
  CHECK(code_of_trailer("x" + whole, content + whole.size() + 1) == ErrorCode::kCorrupt);
  CHECK(code_of_trailer(whole, content + whole.size() + 1) == ErrorCode::kCorrupt);
  CHECK(code_of_trailer(whole, whole.size() - 1) == ErrorCode::kCorrupt);
}

TEST_CASE("trailer: one that also describes its items is read") {
  const Bytes whole = encode_trailer(example());
  // Field 6, in which trailers had items before.
  const Bytes body = whole.substr(0, whole.size() - kTrailerFooterBytes) + "\x32\x02\x08\x01";
  Bytes bytes = body + whole.substr(whole.size() - kTrailerFooterBytes, 12);
  zip::put_u32(bytes, crc32(0, body));
  zip::put_u64(bytes, body.size());
  zip::put_u32(bytes, crc32(0, ByteSpan(bytes).subspan(body.size(), 24)));
  CHECK(decode_trailer(bytes, example().content_bytes + bytes.size(), "file").block_crc32 == example().block_crc32);
}
