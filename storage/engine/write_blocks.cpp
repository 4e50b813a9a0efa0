// Builds the bytes of WriteJob's blocks.
#include <algorithm>
#include <cstring>
#include <utility>

#include <cairn/base/digest.hpp>
#include <cairn/base/error.hpp>
#include <cairn/base/mutex.hpp>
#include <cairn/state/tensor_types.hpp>
#include <cairn/storage/engine/file_appender.hpp>
#include <cairn/storage/engine/write_job.hpp>

namespace cairn {

std::shared_ptr<const TensorBytes> resolve_tensor(const WriteRequest& request, std::uint32_t item) {
  const WriteItem& planned = request.plan->items[item];
  const std::string& name = request.plan->names[planned.name];
  ResolvedData resolved = request.planner->resolve_data(*request.plan, planned);
  const auto* tensor = std::get_if<torch::Tensor>(&resolved);
  if (!tensor)
    throw Error(ErrorCode::kMismatch,
                "the planner resolved \"" + name + "\" to bytes, but planned a tensor: plan it as a bytes object");
  if (const std::string reason = why_not_storable(*tensor); !reason.empty())
    throw Error(ErrorCode::kUnsupported, "cannot save \"" + name + "\": its tensor " + reason);
  // A type that LibTorch lacks is resolved to its carrier.
  if (extents_of(tensor->sizes()) != planned.chunk.sizes || tensor->scalar_type() != carrier_type_of(planned.properties.dtype))
    throw Error(ErrorCode::kMismatch, "the planner resolved \"" + name + "\" to a tensor of " +
                                          to_string(extents_of(tensor->sizes())) + " " + c10::toString(tensor->scalar_type()) +
                                          ", but planned " + to_string(planned.chunk.sizes) + " " +
                                          to_string(planned.properties.dtype));
  return std::make_shared<const TensorBytes>(*tensor);
}

Bytes resolve_bytes(const WriteRequest& request, std::uint32_t item) {
  const WriteItem& planned = request.plan->items[item];
  ResolvedData resolved = request.planner->resolve_data(*request.plan, planned);
  auto* bytes = std::get_if<Bytes>(&resolved);
  if (!bytes)
    throw Error(ErrorCode::kMismatch, "the planner resolved \"" + request.plan->names[planned.name] +
                                          "\" to a tensor, but planned a bytes object: plan it as a tensor");
  return std::move(*bytes);
}

void WriteJob::copy_overlap(const Block& block, std::uint64_t offset, ByteSpan bytes) const {
  const std::uint64_t from = std::max(offset, block.begin);
  const std::uint64_t to = std::min(offset + bytes.size(), block.end);
  if (from < to) std::memcpy(block.memory.data() + (from - block.begin), bytes.data() + (from - offset), to - from);
}

void WriteJob::fill(Block& block) {
  File& file = *block.file;
  copy_overlap(block, 0, file.source->layout.head);
  // Items ascend by offset; an item may span many blocks.
  auto item = std::partition_point(file.items.begin(), file.items.end(),
                                   [&](const Item& other) { return other.placed->end() <= block.begin; });
  for (; item != file.items.end() && item->placed->offset < block.end; ++item) {
    if (failed_) throw Stopped();
    const PlacedTensor& placed = *item->placed;
    const WriteItem& planned = request_.plan->items[placed.item];
    if (placed.layout.prefix_bytes > 0 && placed.payload_offset() > block.begin)
      copy_overlap(block, placed.offset, item_prefix(planned.properties.dtype, planned.chunk.sizes, placed.offset));
    if (placed.layout.payload_bytes > 0)
      fill_payload(block, *item);
    else if (placed.offset >= block.begin)
      resolve(*item);  // nothing to copy, but the planner is called and the shape is checked
    // The suffix has the checksum of the whole payload, which may be filled by other threads. It is
    // written when the last of them is done.
    if (placed.layout.suffix_bytes > 0 && placed.payload_end() < block.end && placed.end() > block.begin)
      block.owed.push_back(&*item);
  }
}

void WriteJob::fill_payload(Block& block, Item& item) {
  const PlacedTensor& placed = *item.placed;
  const std::uint64_t begin = std::max(placed.payload_offset(), block.begin);
  const std::uint64_t end = std::min(placed.payload_end(), block.end);
  if (begin >= end) return;
  const auto data = resolve(item);
  std::uint32_t crc = 0;
  for (std::uint64_t at = begin; at < end;) {
    if (failed_) throw Stopped();
    // Piece by piece, so that the bytes are still in the CPU cache when their checksum is computed.
    const std::uint64_t next = std::min(end, (at / kChecksumBlockBytes + 1) * kChecksumBlockBytes);
    const MutableByteSpan part = block.memory.bytes(at - block.begin, next - at);
    data->read(at - placed.payload_offset(), part);
    if (part.size() >= BlockChecksums::kJoinBytes) {
      const std::uint32_t part_crc = crc32(0, part);
      block.parts.push_back({at - block.begin, part.size(), part_crc});
      crc = at == begin ? part_crc : crc32_combine(crc, part_crc, part.size());
    } else {
      crc = crc32(crc, part);
    }
    at = next;
  }
  seal_part(block, item, crc);
}

void WriteJob::seal_part(Block& block, Item& item, std::uint32_t crc) {
  std::shared_ptr<const TensorBytes> released;  // destroyed after the lock is released
  MutexLock lock(mutex_);
  // Blocks of an item are filled in any order. Each part keeps its checksum until all are there to
  // be combined.
  item.part_crc32[block.index - item.first_block] = crc;
  if (--item.parts_missing > 0) return;
  const std::uint64_t block_bytes = ring_.block_bytes();
  std::uint64_t begin = item.placed->payload_offset();
  for (const std::uint32_t part : item.part_crc32) {
    const std::uint64_t end = std::min(item.placed->payload_end(), (begin / block_bytes + 1) * block_bytes);
    item.crc32 = begin == item.placed->payload_offset() ? part : crc32_combine(item.crc32, part, end - begin);
    begin = end;
  }
  item.part_crc32 = {};
  released.swap(item.data);
  for (Block* waiting : item.waiting)
    if (--waiting->unsealed == 0) completable_.push_back(waiting);
  item.waiting = {};
}

std::shared_ptr<const TensorBytes> WriteJob::resolve(Item& item) {
  {
    MutexLock lock(mutex_);
    while (!failed_ && item.resolving) changed_.wait(mutex_);
    if (failed_) throw Stopped();
    if (item.data) return item.data;
    item.resolving = true;
  }
  auto data = resolve_tensor(request_, item.placed->item);
  {
    MutexLock lock(mutex_);
    item.resolving = false;
    // A sealed item needs its tensor no more. Keeping it would hold the memory until the end of the
    // save.
    if (!item.sealed()) item.data = data;
  }
  changed_.notify_all();
  return data;
}

void WriteJob::fill_and_complete(Block& block) {
  fill(block);
  {
    MutexLock lock(mutex_);
    for (Item* item : block.owed) {
      if (item->sealed()) continue;
      item->waiting.push_back(&block);
      ++block.unsealed;
    }
    if (block.unsealed > 0) return;  // the thread that seals the last item queues this block
    // Queued, not written now: `next_task` takes queued blocks only when no other task can run.
    if (request_.copy_first) return completable_.push_back(&block);
  }
  complete(block);
}

void WriteJob::fill_tail(Block& block) {
  fill(block);
  MutexLock lock(mutex_);
  block.file->tail_filled = true;
}

void WriteJob::fill_owed(Block& block) {
  for (const Item* item : block.owed) {
    const PlacedTensor& placed = *item->placed;
    const WriteItem& planned = request_.plan->items[placed.item];
    copy_overlap(block, placed.payload_end(),
                 item_suffix(planned.properties.dtype, planned.chunk.sizes, placed.offset, item->crc32));
  }
}

void WriteJob::complete(Block& block) {
  fill_owed(block);
  File& file = *block.file;
  const auto length = static_cast<std::size_t>(block.end - block.begin);
  BlockChecksums checksums(kChecksumBlockBytes);
  checksums.add(block.memory.bytes(0, length), block.parts);
  checksums.finish();
  std::copy(checksums.blocks().begin(), checksums.blocks().end(),
            file.block_crc32.begin() + static_cast<std::ptrdiff_t>(block.begin / kChecksumBlockBytes));
  // Before the write: the tail of the file needs only the checksums, and can be built meanwhile.
  file.staged_crc32[block.index] = checksums.whole();
  {
    MutexLock lock(mutex_);
    ++file.checksummed;
  }
  changed_.notify_all();
  if (failed_) throw Stopped();
  file.writer->write_at(block.begin, block.memory.bytes(0, length));
  {
    MutexLock lock(mutex_);
    ++file.written;
  }
  drop(block);
}

// The tail has the end of the tensors, all bytes objects and the trailer. Their lengths become
// known one by one, so it is built from front to back by one thread.
void WriteJob::write_tail(Block& block) {
  fill_owed(block);  // all blocks before this one are checksummed, so every owed item is sealed
  File& file = *block.file;
  FileAppender tail(
      file.writer->alignment_bytes(), block.memory, ring_.block_bytes(),
      [&](std::uint64_t begin, const StagingBlock& memory, std::size_t length) {
        if (failed_) throw Stopped();
        file.writer->write_at(begin, memory.bytes(0, length));
      },
      block.begin, static_cast<std::size_t>(block.end - block.begin), block.parts);
  std::vector<std::uint32_t> bytes_crc32;
  for (const std::uint32_t item : file.source->layout.unsized_items) {
    if (failed_) throw Stopped();
    const Bytes bytes = resolve_bytes(request_, item);
    // Resolved one at a time and only now, because bytes objects may be large, and their lengths
    // need not be known before.
    file.result.bytes_item_lengths.push_back(bytes.size());
    bytes_crc32.push_back(tail.append(bytes));
  }

  const BlockChecksums& checksums = tail.end_content();
  std::vector<std::uint32_t> block_crc32 = std::move(file.block_crc32);
  block_crc32.insert(block_crc32.end(), checksums.blocks().begin(), checksums.blocks().end());
  const bool has_trailer = file.source->layout.head.empty();
  const Bytes trailer = has_trailer ? encode_trailer_of(file, std::move(block_crc32), bytes_crc32) : Bytes();
  tail.append_trailer(trailer);

  std::uint32_t crc = 0;
  for (const std::uint32_t staged : file.staged_crc32) crc = crc32_combine(crc, staged, ring_.block_bytes());
  crc = crc32_combine(crc, checksums.whole(), checksums.length());
  file.result.crc32 = crc32(crc, trailer);
  file.result.trailer_length_bytes = static_cast<std::uint32_t>(trailer.size());
  file.result.length_bytes = tail.finish();
  {
    MutexLock lock(mutex_);
    file.tail_written = true;
  }
  drop(block);
}

TrailerItem trailer_item_of(const SavePlan& plan, std::uint32_t item) {
  const WriteItem& planned = plan.items[item];
  TrailerItem entry;
  entry.fqn = plan.names[planned.name];
  entry.is_bytes = planned.type == WriteItemType::kByteIO;
  if (entry.is_bytes) return entry;
  entry.dtype = planned.properties.dtype;
  entry.size = planned.size;
  entry.chunk = planned.chunk;
  return entry;
}

Bytes WriteJob::encode_trailer_of(const File& file, std::vector<std::uint32_t> block_crc32,
                                  const std::vector<std::uint32_t>& bytes_crc32) const {
  Trailer trailer;
  trailer.save_id = request_.save_id;
  trailer.rank = request_.rank;
  trailer.checksum_block_bytes = kChecksumBlockBytes;
  trailer.block_crc32 = std::move(block_crc32);
  trailer.content_bytes = file.source->layout.tensors_end;
  trailer.items.reserve(file.items.size() + bytes_crc32.size());
  for (const Item& item : file.items) {
    const PlacedTensor& placed = *item.placed;
    TrailerItem entry = trailer_item_of(*request_.plan, placed.item);
    entry.offset = placed.offset;
    entry.length = placed.layout.total_bytes();
    entry.payload_offset = placed.payload_offset();
    entry.payload_bytes = placed.layout.payload_bytes;
    entry.payload_crc32 = item.crc32;
    trailer.items.push_back(std::move(entry));
  }
  const std::vector<PlacedItem> placed = place_unsized(file.source->layout, file.result.bytes_item_lengths);
  for (std::size_t i = 0; i < placed.size(); ++i) {
    TrailerItem entry = trailer_item_of(*request_.plan, placed[i].item);
    entry.offset = entry.payload_offset = placed[i].offset;
    entry.length = entry.payload_bytes = placed[i].length;
    entry.payload_crc32 = bytes_crc32[i];
    trailer.content_bytes += placed[i].length;
    trailer.items.push_back(std::move(entry));
  }
  return encode_trailer(trailer);
}

}  // namespace cairn
