#include <cairn/storage/format/trailer.hpp>

#include <cstring>
#include <limits>
#include <utility>

#include <cairn/base/digest.hpp>
#include <cairn/base/error.hpp>
#include <cairn/messages/trailer.pb.h>
#include <cairn/state/pickle/zip_format.hpp>

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
  std::uint64_t end = 0;
  for (const TrailerItem& item : trailer.items) {
    // Bytes in a hole would belong to no item, and no tool could name what was damaged there.
    check_invariant(item.offset == end, "the items of a file must follow one another without holes");
    check_invariant(item.payload_offset >= item.offset && item.payload_offset + item.payload_bytes <= item.offset + item.length,
                    "the payload of an item must lie within the item");
    end = item.offset + item.length;
  }
  check_invariant(end == trailer.content_bytes, "the items of a file must fill its content");
}

Extents to_extents(const google::protobuf::RepeatedField<std::int64_t>& values) {
  return Extents(values.data(), static_cast<std::size_t>(values.size()));
}

void add_all(const Extents& extents, google::protobuf::RepeatedField<std::int64_t>* values) {
  for (const std::int64_t value : extents) values->Add(value);
}

TrailerItem to_item(v1::TrailerItem& encoded, std::uint64_t content_bytes, const std::string& object) {
  TrailerItem item;
  item.fqn = std::move(*encoded.mutable_fqn());
  switch (encoded.kind()) {
    case v1::TRAILER_ITEM_KIND_BYTES:
      item.is_bytes = true;
      break;
    case v1::TRAILER_ITEM_KIND_TENSOR: {
      const auto dtype = dtype_from_name(encoded.dtype());
      if (!dtype) damaged(object, "\"" + item.fqn + "\" has the unknown dtype \"" + encoded.dtype() + "\"");
      item.dtype = *dtype;
      item.size = to_extents(encoded.size());
      item.chunk = {to_extents(encoded.chunk_offsets()), to_extents(encoded.chunk_sizes())};
      if (!fits(item.chunk, item.size)) damaged(object, "the chunk of \"" + item.fqn + "\" lies outside of its tensor");
      break;
    }
    default:
      damaged(object, "\"" + item.fqn + "\" is of an unknown kind");
  }
  item.offset = encoded.offset();
  item.length = encoded.length();
  item.payload_offset = encoded.payload_offset();
  item.payload_bytes = encoded.payload_bytes();
  item.payload_crc32 = encoded.payload_crc32();
  // Subtracts, because sums of damaged numbers may overflow.
  const bool within_content = item.length <= content_bytes && item.offset <= content_bytes - item.length;
  const bool within_item = within_content && item.payload_offset >= item.offset && item.payload_bytes <= item.length &&
                           item.payload_offset - item.offset <= item.length - item.payload_bytes;
  if (!within_item) damaged(object, "\"" + item.fqn + "\" lies outside of the file");
  return item;
}

}  // namespace

Bytes encode_trailer(const Trailer& trailer) {
  check_before_encoding(trailer);
  v1::Trailer encoded;
  encoded.set_save_id(trailer.save_id);
  encoded.set_rank(static_cast<std::uint32_t>(trailer.rank));
  encoded.set_content_bytes(trailer.content_bytes);
  encoded.set_checksum_block_bytes(trailer.checksum_block_bytes);
  encoded.mutable_block_crc32()->Add(trailer.block_crc32.begin(), trailer.block_crc32.end());
  encoded.mutable_items()->Reserve(static_cast<int>(trailer.items.size()));
  for (const TrailerItem& item : trailer.items) {
    v1::TrailerItem* to = encoded.add_items();
    to->set_fqn(item.fqn);
    to->set_kind(item.is_bytes ? v1::TRAILER_ITEM_KIND_BYTES : v1::TRAILER_ITEM_KIND_TENSOR);
    if (!item.is_bytes) {
      to->set_dtype(to_string(item.dtype));
      add_all(item.size, to->mutable_size());
      add_all(item.chunk.offsets, to->mutable_chunk_offsets());
      add_all(item.chunk.sizes, to->mutable_chunk_sizes());
    }
    to->set_offset(item.offset);
    to->set_length(item.length);
    to->set_payload_offset(item.payload_offset);
    to->set_payload_bytes(item.payload_bytes);
    to->set_payload_crc32(item.payload_crc32);
  }

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
  trailer.rank = static_cast<int>(decoded.rank());
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
  trailer.items.reserve(static_cast<std::size_t>(decoded.items_size()));
  std::uint64_t end = 0;
  for (v1::TrailerItem& item : *decoded.mutable_items()) {
    trailer.items.push_back(to_item(item, trailer.content_bytes, object));
    if (trailer.items.back().offset != end)
      damaged(object, "\"" + trailer.items.back().fqn + "\" does not follow the item before it");
    end += trailer.items.back().length;
  }
  if (end != trailer.content_bytes) damaged(object, "its items do not fill the file");
  return trailer;
}

}  // namespace cairn
