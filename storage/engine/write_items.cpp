// Appends to the files of WriteJob what has no known length: compressed and transformed items,
// bytes objects and trailers.
#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include <cairn/base/digest.hpp>
#include <cairn/base/error.hpp>
#include <cairn/formats/item_archive.hpp>
#include <cairn/storage/engine/write_job.hpp>

namespace cairn {

// Continues `file` in `block`, the part of which that has tensors is filled.
void WriteJob::append_to(File& file, Block& block) {
  OpenEnd& end = file.open_end.emplace(OpenEnd());
  end.memory = &block.memory;
  end.begin = block.begin;
  end.used = static_cast<std::size_t>(block.end - block.begin);
  end.checksums.add(block.memory.bytes(0, end.used), block.known);
}

// Appends bytes to a file. Block checksums cover content only.
void WriteJob::append(File& file, ByteSpan bytes, bool is_content) {
  OpenEnd& end = *file.open_end;
  while (!bytes.empty()) {
    if (end.used == ring_.block_bytes()) flush(file);
    // In parts small enough to stay in the CPU cache between copy and checksum.
    const std::size_t length = std::min({bytes.size(), ring_.block_bytes() - end.used, std::size_t{kChecksumBlockBytes}});
    const MutableByteSpan part = end.memory->bytes(end.used, length);
    std::memcpy(part.data(), bytes.data(), length);
    if (is_content) end.checksums.add(part);
    end.used += length;
    bytes = bytes.subspan(length, bytes.size() - length);
  }
}

void WriteJob::flush(File& file) {
  stop_if_failed();
  OpenEnd& end = *file.open_end;
  // A unit writes its full block after its turn, if there is memory for what follows.
  StagingBlock next;
  if (file.turn < file.units && !file.full) next = ring_.try_acquire();
  if (next) {
    file.full.emplace(FullBlock{end.begin, std::move(*end.memory), end.used});
    *end.memory = std::move(next);
  } else {
    file.writer->write_at(end.begin, end.memory->bytes(0, end.used));
  }
  end.begin += end.used;
  end.used = 0;
}

void WriteJob::write_part(Block& block) {
  File& file = *block.file;
  Item& item = *std::prev(std::partition_point(file.items.begin(), file.items.end(),
                                               [&](const Item& other) { return other.first_unit <= block.index; }));
  const WriteItem& planned = request_.plan->items[item.item];
  const auto& [dtype, sizes] = std::tie(planned.properties.dtype, planned.chunk.sizes);
  const std::uint64_t begin = (block.index - item.first_unit) * frame_bytes_;
  const std::uint64_t end = std::min(planned.payload_bytes(), begin + frame_bytes_);
  const MutableByteSpan payload = block.memory.bytes(0, static_cast<std::size_t>(end - begin));
  const MutableByteSpan frame = block.memory.bytes(static_cast<std::size_t>(frame_bytes_), ring_.block_bytes() - frame_bytes_);
  const auto data = resolve(item);
  if (!data->is_on_host()) block.memory.lock();
  if (!payload.empty()) data->read(begin, payload);
  copied(item);
  const std::uint32_t payload_crc32 = crc32(0, payload);
  std::unique_ptr<ZstdCompressor> compressor = changes_.zstd_level > 0 ? take_compressor() : nullptr;
  const ByteSpan stored = compressor && !payload.empty() ? frame.subspan(0, compressor->compress(payload, frame)) : payload;

  wait_for_turn(block);
  // Prefix and suffix have frames of their own: the suffix has the checksum of the whole payload,
  // and readers of a part need both.
  if (begin == 0) {
    begin_item(file);
    append_small_frame(file, item_prefix(dtype, sizes, 0), compressor.get());
  }
  if (!stored.empty()) append_frame(file, stored, payload.size());
  item.crc32 = crc32_combine(item.crc32, payload_crc32, payload.size());
  if (end == planned.payload_bytes()) {
    append_small_frame(file, item_suffix(dtype, sizes, 0, item.crc32), compressor.get());
    if (compressor) file.sink(encode_seek_table(file.frames));
    end_item(file);
  }
  std::optional<FullBlock> full;
  full.swap(file.full);
  if (compressor) {
    MutexLock lock(mutex_);
    idle_.push_back(std::move(compressor));
  }
  end_turn(block, true);
  if (full) file.writer->write_at(full->begin, full->memory.bytes(0, full->length));
  full.reset();
  drop(block, true);
}

void WriteJob::append_small_frame(File& file, ByteSpan bytes, ZstdCompressor* compressor) {
  if (!compressor) return append_frame(file, bytes, bytes.size());
  Bytes frame(ZstdCompressor::frame_bytes_max(bytes.size()), '\0');
  const std::size_t length = compressor->compress(bytes, {frame.data(), frame.size()});
  append_frame(file, {frame.data(), length}, bytes.size());
}

void WriteJob::append_frame(File& file, ByteSpan frame, std::size_t plain_bytes) {
  file.sink(frame);
  file.frames.push_back({static_cast<std::uint32_t>(frame.size()), static_cast<std::uint32_t>(plain_bytes)});
}

void WriteJob::begin_item(File& file) {
  file.item_begin = file.open_end->position();
  file.frames.clear();
  file.item_ended = false;
  file.sink = [this, &file](ByteSpan bytes) {
    file.item_ended = bytes.empty();
    append(file, bytes);
  };
  for (const StreamTransform& transform : changes_.transforms) file.sink = transform.transform_to(std::move(file.sink));
}

// The length of the item becomes known here, after all transforms.
void WriteJob::end_item(File& file) {
  file.sink({});
  file.sink = nullptr;
  if (!file.item_ended)
    throw Error(ErrorCode::kInternal, "a stream transform did not pass on the end of an item: " +
                                          std::to_string(changes_.transforms.size()) + " transforms are in use");
  file.result.bytes_item_lengths.push_back(file.open_end->position() - file.item_begin);
}

// The tail has the end of the tensors, all bytes objects and the trailer. Their lengths become
// known one by one, so it is built from front to back by one thread.
void WriteJob::write_tail(Block& block) {
  File& file = *block.file;
  fill_suffixes(block);  // all units are checksummed
  if (!file.open_end) append_to(file, block);
  for (const std::uint32_t item : file.source->layout.unsized_items) {
    if (request_.plan->items[item].type != WriteItemType::kByteIO) continue;
    stop_if_failed();
    // Resolved one at a time and only now, because bytes objects may be large, and their lengths
    // need not be known before.
    const Bytes bytes = request_.source->bytes_of(request_.plan->items[item]);
    begin_item(file);
    if (!bytes.empty()) file.sink(bytes);
    end_item(file);
  }

  Trailer trailer;
  trailer.save_id = request_.save_id;
  trailer.checksum_block_bytes = kChecksumBlockBytes;
  OpenEnd& end = *file.open_end;
  trailer.content_bytes = end.position();
  BlockChecksums& checksums = end.checksums;
  checksums.finish();
  trailer.block_crc32 = std::move(file.block_crc32);
  trailer.block_crc32.insert(trailer.block_crc32.end(), checksums.blocks().begin(), checksums.blocks().end());
  const bool has_trailer = file.source->layout.head.empty();
  const Bytes encoded = has_trailer ? encode_trailer(trailer) : Bytes();
  append(file, encoded, false);

  std::uint32_t crc = 0;
  for (const std::uint32_t staged : file.staged_crc32) crc = crc32_combine(crc, staged, ring_.block_bytes());
  crc = crc32_combine(crc, checksums.whole(), checksums.length());
  file.result.crc32 = crc32(crc, encoded);
  file.result.trailer_length_bytes = static_cast<std::uint32_t>(encoded.size());
  file.result.length_bytes = end.position();
  // Direct I/O writes whole units. Closing the file cuts it to its true length.
  const std::size_t unit = file.writer->alignment_bytes();
  const std::size_t padded = (end.used + unit - 1) / unit * unit;
  std::memset(end.memory->data() + end.used, 0, padded - end.used);
  end.used = padded;
  if (end.used > 0) flush(file);
  file.open_end.reset();
  {
    MutexLock lock(mutex_);
    file.tail_written = true;
  }
  drop(block, false);
}

std::unique_ptr<ZstdCompressor> WriteJob::take_compressor() {
  {
    MutexLock lock(mutex_);
    if (!idle_.empty()) {
      std::unique_ptr<ZstdCompressor> compressor = std::move(idle_.back());
      idle_.pop_back();
      return compressor;
    }
  }
  return std::make_unique<ZstdCompressor>(changes_.zstd_level);
}

}  // namespace cairn
