// The trailer of data files: round trips, and detection of all damage.
#include <cairn/base/digest.hpp>
#include <cairn/base/error.hpp>
#include <cairn/formats/zip_format.hpp>
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
