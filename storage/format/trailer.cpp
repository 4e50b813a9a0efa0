#include <cairn/storage/format/trailer.hpp>

#include <cstring>
#include <limits>
#include <utility>

#include <zlib.h>

#include <cairn/messages/trailer.pb.h>
#include <cairn/base/error.hpp>
#include <cairn/formats/zip_format.hpp>

namespace cairn {
namespace {

// Footer, little-endian: magic 8 bytes, version 4, CRC-32 of the body 4, length of the body 8,
// CRC-32 of these 24 bytes 4.
constexpr char kMagic[8] = {'C', 'a', 'i', 'r', 'n', 'T', 'r', 'l'};
constexpr std::size_t kVersionAt = 8;
constexpr std::size_t kBodyCrcAt = 12;
constexpr std::size_t kBodyBytesAt = 16;
constexpr std::size_t kFooterCrcAt = 24;
static_assert(kFooterCrcAt + 4 == kTrailerFooterBytes);

struct Footer {
  std::uint32_t body_crc32 = 0;
  std::uint64_t body_bytes = 0;
};

[[noreturn]] void damaged(const std::string& object, const std::string& what) {
  throw Error(ErrorCode::kCorrupt, "the trailer of " + object + " is damaged: " + what);
}

Footer read_footer(ByteSpan bytes, const std::string& object) {
  if (bytes.size() != kTrailerFooterBytes) damaged(object, "the file is too short to hold one");
  const char* data = bytes.data();
  if (std::memcmp(data, kMagic, sizeof(kMagic)) != 0) damaged(object, "its magic number is missing");
  // Before the version, which may be damaged as well.
  if (crc32(0, {data, kFooterCrcAt}) != zip::get_u32(data + kFooterCrcAt))
    damaged(object, "the checksum of its footer does not match");
  const std::uint64_t version = zip::get_u32(data + kVersionAt);
  if (version == 0) damaged(object, "version 0 does not exist");
  if (version > kTrailerVersion)
    throw Error(ErrorCode::kUnsupported, object + " was written in trailer version " + std::to_string(version) +
                                             "; this Cairn reads up to " + std::to_string(kTrailerVersion) + ": use a newer one");
  return {zip::get_u32(data + kBodyCrcAt), zip::get_u64(data + kBodyBytesAt)};
}

std::uint64_t blocks_of(std::uint64_t content_bytes, std::uint64_t block_bytes) {
  return content_bytes / block_bytes + (content_bytes % block_bytes != 0 ? 1 : 0);
}

// The decoder has the same conditions in code of its own, so that a mistake in one is found by the
// other.
void check_before_encoding(const Trailer& trailer) {
  check_invariant(trailer.block_crc32.size() == blocks_of(trailer.content_bytes, trailer.checksum_block_bytes),
                  "a trailer must hold one checksum for each block of its file");
}

}  // namespace

Bytes encode_trailer(const Trailer& trailer) {
  check_before_encoding(trailer);
  v1::Trailer encoded;
  encoded.set_save_id(trailer.save_id);
  encoded.set_content_bytes(trailer.content_bytes);
  encoded.set_checksum_block_bytes(trailer.checksum_block_bytes);
  encoded.mutable_block_crc32()->Add(trailer.block_crc32.begin(), trailer.block_crc32.end());

  const std::size_t body_bytes = encoded.ByteSizeLong();
  check_invariant(body_bytes <= std::numeric_limits<int>::max(), "a trailer must stay below 2 GiB");
  Bytes bytes;
  bytes.reserve(body_bytes + kTrailerFooterBytes);
  check_invariant(encoded.AppendToString(&bytes), "a trailer must serialise");
  const std::uint32_t body_crc32 = crc32(0, bytes);
  bytes.append(kMagic, sizeof(kMagic));
  zip::put_u32(bytes, kTrailerVersion);
  zip::put_u32(bytes, body_crc32);
  zip::put_u64(bytes, body_bytes);
  zip::put_u32(bytes, crc32(0, {bytes.data() + body_bytes, kFooterCrcAt}));
  return bytes;
}

std::uint32_t whole_crc32(const Trailer& trailer, ByteSpan trailer_bytes) {
  const std::uint64_t block_bytes = trailer.checksum_block_bytes;
  const std::uint64_t last_bytes = trailer.content_bytes % block_bytes;
  // A terabyte has eight million blocks, so the operator for a block's length is computed once.
  const uLong append_block = ::crc32_combine_gen(static_cast<z_off_t>(block_bytes));
  std::uint32_t crc = 0;
  for (std::size_t block = 0; block < trailer.content_bytes / block_bytes; ++block)
    crc = static_cast<std::uint32_t>(::crc32_combine_op(crc, trailer.block_crc32[block], append_block));
  if (last_bytes > 0) crc = crc32_combine(crc, trailer.block_crc32.back(), last_bytes);
  return crc32(crc, trailer_bytes);
}

std::uint64_t trailer_length(ByteSpan footer, std::uint64_t file_bytes, const std::string& object) {
  const std::uint64_t body_bytes = read_footer(footer, object).body_bytes;
  if (file_bytes < footer.size() || body_bytes > file_bytes - footer.size()) damaged(object, "it is longer than the file");
  return body_bytes + footer.size();
}

// From the outside inwards: footer, checksum of the body, the body's message, and the relations
// between its numbers.
Trailer decode_trailer(ByteSpan bytes, std::uint64_t file_bytes, const std::string& object) {
  if (bytes.size() < kTrailerFooterBytes) damaged(object, "the file is too short to hold one");
  const std::size_t body_bytes = bytes.size() - kTrailerFooterBytes;
  const Footer footer = read_footer(bytes.subspan(body_bytes, kTrailerFooterBytes), object);
  if (footer.body_bytes != body_bytes) damaged(object, "it is not as long as it should be");
  if (crc32(0, bytes.subspan(0, body_bytes)) != footer.body_crc32) damaged(object, "its checksum does not match");
  v1::Trailer decoded;
  if (body_bytes > std::numeric_limits<int>::max() || !decoded.ParseFromArray(bytes.data(), static_cast<int>(body_bytes)))
    damaged(object, "its body cannot be parsed");

  Trailer trailer;
  trailer.save_id = std::move(*decoded.mutable_save_id());
  trailer.content_bytes = decoded.content_bytes();
  trailer.checksum_block_bytes = decoded.checksum_block_bytes();
  const std::uint32_t block_bytes = trailer.checksum_block_bytes;
  if (block_bytes < kChecksumBlockBytesMin || block_bytes > kChecksumBlockBytesMax || (block_bytes & (block_bytes - 1)) != 0)
    damaged(object, "checksum blocks of " + std::to_string(block_bytes) + " bytes are not possible");
  if (file_bytes < bytes.size() || trailer.content_bytes != file_bytes - bytes.size())
    damaged(object, "it describes " + std::to_string(trailer.content_bytes) + " bytes, but the file has " +
                        std::to_string(file_bytes) + " with the trailer");
  trailer.block_crc32.assign(decoded.block_crc32().begin(), decoded.block_crc32().end());
  if (trailer.block_crc32.size() != blocks_of(trailer.content_bytes, block_bytes))
    damaged(object, "it has " + std::to_string(trailer.block_crc32.size()) + " checksums for " +
                        std::to_string(blocks_of(trailer.content_bytes, block_bytes)) + " blocks");
  return trailer;
}

}  // namespace cairn
