// Stored items: lengths that are known before the bytes, payload positions, and archives that read
// back.
#include <string>

#include <cairn/tests/support/plain.hpp>

#include <cairn/base/digest.hpp>
#include <cairn/formats/item_archive.hpp>
#include <cairn/formats/torch_archive.hpp>
#include <cairn/formats/zip_format.hpp>
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

}  // namespace

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
