#include <cairn/storage/copy_checkpoint.hpp>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>
#include <vector>

#include <cairn/base/digest.hpp>
#include <cairn/base/error.hpp>
#include <cairn/base/parallel.hpp>
#include <cairn/storage/engine/data_file.hpp>
#include <cairn/storage/format/commit_record.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/publication.hpp>
#include <cairn/storage/read_metadata.hpp>

namespace cairn {
namespace {

constexpr std::uint64_t kCopyPieceBytes = 4u << 20;  // memory of each thread

using Moved = std::function<void(std::size_t bytes)>;

// Copies a data file, and makes `file` describe the copy.
void copy_file(Store& from, Store& to, FileInfo& file, const std::string& save_id, unsigned threads, const Moved& moved) {
  const std::string object = child_url(from.url(), file.name);
  Trailer trailer = read_trailer(from, file);
  const std::uint64_t content_bytes = trailer.content_bytes;
  FileInfo copy = file;
  // A name and a trailer belong to one save, and the copy is a save of its own.
  const std::string before = *save_id_of_file(file.name);
  copy.name.replace(copy.name.rfind(before), before.size(), save_id);
  trailer.save_id = save_id;
  copy.written_by.clear();
  const Bytes end = encode_trailer(trailer);
  copy.length = content_bytes + end.size();
  copy.trailer_length = static_cast<std::uint32_t>(end.size());
  copy.crc32 = whole_crc32(trailer, end);  // each block is compared below

  CreateOptions options;
  options.expected_bytes = *copy.length;
  const std::uint64_t piece_bytes = prepare_pieces(to.traits(), *copy.length, kCopyPieceBytes, options);
  const auto writer = to.create(copy.name, options);
  const auto fill = [&](std::uint64_t begin, MutableByteSpan piece) {
    const std::uint64_t content = std::min<std::uint64_t>(piece.size(), content_bytes - std::min(begin, content_bytes));
    if (content > 0) from.read(file.name, {{begin, piece.subspan(0, content)}});
    check_blocks(trailer, begin, piece.subspan(0, content), object);
    // The last pieces end with the trailer.
    if (content < piece.size())
      std::memcpy(piece.data() + content, end.data() + (begin + content - content_bytes), piece.size() - content);
  };
  write_pieces(*writer, *copy.length, piece_bytes, threads, fill, moved);
  writer->sync(*copy.length);
  file = std::move(copy);
}

// Reads a copy back. Throws kCorrupt if it differs from what was sent.
void check_copy(Store& to, const FileInfo& file, unsigned threads, const Moved& moved) {
  const bool is_whole = to.size_bytes(file.name) == file.length;
  if (!is_whole || read_crc32(to, file.name, *file.length, threads, moved) != file.crc32)
    throw Error(ErrorCode::kCorrupt, child_url(to.url(), file.name) + " does not read back as it was written");
}

}  // namespace

std::optional<Trailer> trailer_of(Store& store, const ObjectName& name, std::uint64_t bytes) {
  if (!save_id_of_file(name)) return std::nullopt;
  const std::string object = child_url(store.url(), name);
  if (bytes < kTrailerFooterBytes) throw Error(ErrorCode::kCorrupt, object + " is cut short");
  Bytes footer(kTrailerFooterBytes, '\0');
  store.read(name, {{bytes - footer.size(), {footer.data(), footer.size()}}});
  return read_trailer(store, {name, bytes, std::nullopt, static_cast<std::uint32_t>(trailer_length(footer, bytes, object))});
}

void check_blocks(const Trailer& trailer, std::uint64_t begin, ByteSpan bytes, const std::string& object) {
  bytes = bytes.subspan(0, std::min<std::uint64_t>(bytes.size(), trailer.content_bytes - std::min(begin, trailer.content_bytes)));
  check_blocks(trailer.block_crc32, trailer.checksum_block_bytes, begin, bytes, [&](std::uint64_t at, ByteSpan) {
    throw Error(ErrorCode::kCorrupt, object + " is damaged at offset " + std::to_string(at) + " (the checksum does not match)");
  });
}

std::uint32_t read_crc32(Store& store, const ObjectName& name, std::uint64_t bytes, unsigned threads,
                         const std::function<void(std::size_t bytes)>& read) {
  std::vector<std::uint32_t> pieces(static_cast<std::size_t>((bytes + kCopyPieceBytes - 1) / kCopyPieceBytes));
  const auto bytes_of = [&](std::size_t piece) { return std::min(kCopyPieceBytes, bytes - piece * kCopyPieceBytes); };
  for_each_in_parallel(threads, pieces.size(), [&](std::size_t piece) {
    Bytes content(static_cast<std::size_t>(bytes_of(piece)), '\0');
    store.read(name, {{piece * kCopyPieceBytes, {content.data(), content.size()}}});
    pieces[piece] = crc32(0, content);
    if (read) read(content.size());
  });
  std::uint32_t crc = 0;
  for (std::size_t piece = 0; piece < pieces.size(); ++piece) crc = crc32_combine(crc, pieces[piece], bytes_of(piece));
  return crc;
}

std::uint64_t prepare_pieces(const StoreTraits& traits, std::uint64_t bytes, std::uint64_t piece_bytes, CreateOptions& options) {
  piece_bytes = std::max(piece_bytes, traits.part_bytes_min);
  if (traits.parts_max > 0) piece_bytes = std::max(piece_bytes, bytes / traits.parts_max + 1);
  piece_bytes = (piece_bytes + kChecksumBlockBytesMax - 1) / kChecksumBlockBytesMax * kChecksumBlockBytesMax;
  if (traits.part_bytes_min > 0 && bytes > piece_bytes) {
    options.part_bytes = piece_bytes;
    options.expected_bytes = bytes;
  }
  return piece_bytes;
}

void write_pieces(ObjectWriter& writer, std::uint64_t bytes, std::uint64_t piece_bytes, unsigned threads,
                  const std::function<void(std::uint64_t begin, MutableByteSpan piece)>& fill,
                  const std::function<void(std::size_t bytes)>& wrote) {
  std::atomic<std::uint64_t> next{0};
  const auto workers =
      static_cast<unsigned>(std::min<std::uint64_t>((bytes + piece_bytes - 1) / piece_bytes, std::max(1u, threads)));
  for_each_in_parallel(workers, workers, [&](std::size_t) {
    try {
      Bytes piece;
      for (std::uint64_t begin = next.fetch_add(piece_bytes); begin < bytes; begin = next.fetch_add(piece_bytes)) {
        piece.resize(static_cast<std::size_t>(std::min(piece_bytes, bytes - begin)));
        fill(begin, {piece.data(), piece.size()});
        writer.write_at(begin, piece);
        wrote(piece.size());
      }
    } catch (...) {
      next = bytes;  // the other threads stop
      throw;
    }
  });
}

CheckpointCopy copy_checkpoint(Store& from, Store& to, const std::string& save_id, unsigned threads,
                               const std::function<void(std::uint64_t done, std::uint64_t all)>& progress) {
  Metadata metadata = read_metadata(from);
  CheckpointCopy copied;
  copied.files = metadata.files.size();
  for (const FileInfo& file : metadata.files) {
    if (!metadata.commit || save_id_of_file(file.name) != metadata.save_id)
      throw Error(ErrorCode::kUnsupported,
                  "cannot copy " + from.url() + ": " + file.name +
                      " is not in Cairn's own format, so nothing "
                      "can check its copy; `cairn convert --to dcp` writes such a checkpoint at another place");
    copied.bytes += *file.length;
  }
  // A record beside those of others would hide their checkpoint.
  if (to.is_taken(kCommitRecordName) || !rank_records(to).empty() || is_torch_checkpointing(to))
    throw Error(ErrorCode::kAlreadyExists, "a checkpoint exists already at " + to.url());

  // 1
  to.create_root();
  copied.starts_over = remove_unfinished(to);
  to.begin_attempt(save_id, Overwrite::kRefused);
  try {
    std::atomic<std::uint64_t> done{0};
    const Moved moved = [&](std::size_t bytes) {
      const std::uint64_t so_far = done += bytes;
      if (progress) progress(so_far, 2 * copied.bytes);
    };
    // 2
    for (FileInfo& file : metadata.files) copy_file(from, to, file, save_id, threads, moved);
    // 3
    for (const FileInfo& file : metadata.files) check_copy(to, file, threads, moved);
    // 4
    metadata.save_id = save_id;
    metadata.checkpoint_id = to.url();
    // Nothing was replaced at the new place, and the copy has all its bytes for itself.
    metadata.commit->retired.clear();
    metadata.commit->shares_with.clear();
    to.publish(save_id, encode_commit_record(metadata), Overwrite::kRefused);
  } catch (...) {
    discard_save(to, save_id);
    throw;
  }
  return copied;
}

}  // namespace cairn
