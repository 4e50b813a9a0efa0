// The trailer of data files: round trips, and detection of all damage.
#include <tuple>

#include <cairn/base/error.hpp>
#include <cairn/storage/format/trailer.hpp>
#include <cairn/tests/support/plain.hpp>

using namespace cairn;

namespace {

Trailer example() {
  Trailer trailer;
  trailer.save_id = "0123-a-1";
  trailer.rank = 3;
  trailer.content_bytes = kChecksumBlockBytes + 100;
  trailer.block_crc32 = {0xDEADBEEF, 7};
  TrailerItem tensor;
  tensor.fqn = "layer.weight";
  tensor.dtype = DType::kBFloat16;
  tensor.size = {8, 4};
  tensor.chunk = {{2, 0}, {2, 4}};
  tensor.length = kChecksumBlockBytes;
  tensor.payload_offset = 64;
  tensor.payload_bytes = 16;
  tensor.payload_crc32 = 0xFFFFFFFF;
  TrailerItem bytes;
  bytes.fqn = "größe";
  bytes.is_bytes = true;
  bytes.offset = bytes.payload_offset = kChecksumBlockBytes;
  bytes.length = bytes.payload_bytes = 100;
  trailer.items = {tensor, bytes};
  return trailer;
}

ErrorCode code_of(const Bytes& bytes, std::uint64_t file_bytes) {
  try {
    decode_trailer(bytes, file_bytes, "file");
  } catch (const Error& error) {
    return error.code();
  }
  return ErrorCode{};
}

}  // namespace

TEST_CASE("trailer: a short, long or displaced one is found") {
  const Bytes whole = encode_trailer(example());
  const std::uint64_t content = example().content_bytes;
  for (std::size_t length = 0; length < whole.size(); ++length) {
    CHECK(code_of(whole.substr(0, length), content + length) == ErrorCode::kCorrupt);
    CHECK(code_of(whole.substr(whole.size() - length), content + length) == ErrorCode::kCorrupt);
  }
  CHECK(code_of("x" + whole, content + whole.size() + 1) == ErrorCode::kCorrupt);
  CHECK(code_of(whole, content + whole.size() + 1) == ErrorCode::kCorrupt);
  CHECK(code_of(whole, whole.size() - 1) == ErrorCode::kCorrupt);
}

TEST_CASE("trailer: what cannot be a file is not encoded") {
  Trailer hole = example();
  hole.items[1].offset += 1;
  CHECK_THROWS_AS(encode_trailer(hole), InternalError);
  Trailer checksums = example();
  checksums.block_crc32.pop_back();
  CHECK_THROWS_AS(encode_trailer(checksums), InternalError);
  Trailer beyond = example();
  beyond.items[0].payload_bytes = beyond.items[0].length;
  CHECK_THROWS_AS(encode_trailer(beyond), InternalError);
}

TEST_CASE("trailer: round trip") {
  const Trailer before = example();
  const Bytes bytes = encode_trailer(before);
  const std::uint64_t file_bytes = before.content_bytes + bytes.size();
  const Trailer after = decode_trailer(bytes, file_bytes, "file");
  CHECK(after.save_id == before.save_id);
  CHECK(after.rank == 3);
  CHECK(after.content_bytes == before.content_bytes);
  CHECK(after.checksum_block_bytes == kChecksumBlockBytes);
  CHECK(after.block_crc32 == before.block_crc32);
  REQUIRE(after.items.size() == 2);
  const auto fields = [](const TrailerItem& item) {
    return std::tie(item.fqn, item.is_bytes, item.size, item.chunk, item.offset, item.length, item.payload_offset,
                    item.payload_bytes, item.payload_crc32);
  };
  for (std::size_t i = 0; i < 2; ++i) CHECK((fields(after.items[i]) == fields(before.items[i])));
  CHECK(after.items[0].dtype == DType::kBFloat16);
}
