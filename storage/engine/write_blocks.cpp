// Writes the tensors of WriteJob whose place in their file is known.
#include <algorithm>
#include <cstring>

#include <cairn/base/digest.hpp>
#include <cairn/storage/engine/write_job.hpp>

namespace cairn {

void WriteJob::write_block(Block& block) {
  fill(block);
  wait_for_turn(block);
  fill_suffixes(block);
  end_turn(block, false);
  MutexLock lock(mutex_);
  --units_to_copy_;
  // Once all that is left fits into the ring, `next_task` has blocks written only when nothing can
  // be copied.
  if (request_.copy_first && units_to_copy_ < ring_.blocks_max()) return copied_first_.push_back(&block);
  lock.unlock();
  finish_block(block);
}

void WriteJob::finish_block(Block& block) {
  File& file = *block.file;
  BlockChecksums checksums(kChecksumBlockBytes);
  const MutableByteSpan bytes = block.memory.bytes(0, static_cast<std::size_t>(block.end - block.begin));
  checksums.add(bytes, block.known);
  checksums.finish();
  std::copy(checksums.blocks().begin(), checksums.blocks().end(),
            file.block_crc32.begin() + static_cast<std::ptrdiff_t>(block.begin / kChecksumBlockBytes));
  file.staged_crc32[block.index] = checksums.whole();
  {
    // Before the write: the tail of the file needs only the checksums, and can be built meanwhile.
    MutexLock lock(mutex_);
    ++file.checksummed;
  }
  changed_.notify_all();
  stop_if_failed();
  file.writer->write_at(block.begin, bytes);
  drop(block, true);
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
    stop_if_failed();
    const PlacedTensor& placed = *item->placed;
    const WriteItem& planned = request_.plan->items[placed.item];
    if (placed.layout.prefix_bytes > 0 && placed.payload_offset() > block.begin)
      copy_overlap(block, placed.offset, item_prefix(planned.properties.dtype, planned.chunk.sizes, placed.offset));
    if (placed.layout.payload_bytes > 0)
      fill_payload(block, *item);
    else if (placed.offset >= block.begin)
      resolve(*item);  // nothing to copy, but the planner is called and the shape is checked
    // The suffix has the checksum of the whole payload, of which earlier blocks may hold a part.
    if (placed.layout.suffix_bytes > 0 && placed.payload_end() < block.end && placed.end() > block.begin)
      block.ending.push_back(&*item);
  }
}

void WriteJob::fill_payload(Block& block, Item& item) {
  const PlacedTensor& placed = *item.placed;
  const std::uint64_t begin = std::max(placed.payload_offset(), block.begin);
  const std::uint64_t end = std::min(placed.payload_end(), block.end);
  if (begin >= end) return;
  const auto data = resolve(item);
  // One copy from a device takes less time than many. Bytes of the host are copied piece by piece,
  // so that they are still in the CPU cache when their checksum is computed.
  const bool at_once = !data->is_on_host();
  if (at_once) block.memory.lock();
  if (at_once) data->read(begin - placed.payload_offset(), block.memory.bytes(begin - block.begin, end - begin));
  std::uint32_t crc = 0;
  for (std::uint64_t at = begin; at < end;) {
    stop_if_failed();
    const std::uint64_t next = std::min(end, (at / kChecksumBlockBytes + 1) * kChecksumBlockBytes);
    const MutableByteSpan part = block.memory.bytes(at - block.begin, next - at);
    if (!at_once) data->read(at - placed.payload_offset(), part);
    if (part.size() >= BlockChecksums::kJoinBytes) {
      const std::uint32_t part_crc = crc32(0, part);
      block.known.push_back({at - block.begin, part.size(), part_crc});
      crc = at == begin ? part_crc : crc32_combine(crc, part_crc, part.size());
    } else {
      crc = crc32(crc, part);
    }
    at = next;
  }
  block.parts.push_back({&item, end - begin, crc});
  copied(item);
}

// Needs the turn of the block: all earlier blocks have joined their checksums.
void WriteJob::fill_suffixes(Block& block) {
  for (const ItemPart& part : block.parts) part.item->crc32 = crc32_combine(part.item->crc32, part.crc32, part.length);
  for (const Item* item : block.ending) {
    const PlacedTensor& placed = *item->placed;
    const WriteItem& planned = request_.plan->items[placed.item];
    copy_overlap(block, placed.payload_end(),
                 item_suffix(planned.properties.dtype, planned.chunk.sizes, placed.offset, item->crc32));
  }
}

std::shared_ptr<const ElementRun> WriteJob::resolve(Item& item) {
  // With sixteen threads and many small items, the lock would take most of the time.
  if (item.in_one_unit) return item.data ? std::move(item.data) : request_.source->elements_of(request_.plan->items[item.item]);
  {
    MutexLock lock(mutex_);
    while (!failed() && item.resolving) changed_.wait(mutex_);
    stop_if_failed();
    if (item.data) return item.data;
    item.resolving = true;
  }
  auto data = request_.source->elements_of(request_.plan->items[item.item]);
  {
    MutexLock lock(mutex_);
    item.resolving = false;
    // Keeping the tensor of an item that is not copied would hold its memory until the save ends.
    if (item.units_left > 0) item.data = data;
  }
  changed_.notify_all();
  return data;
}

void WriteJob::copied(Item& item) {
  if (item.in_one_unit) return;
  std::shared_ptr<const ElementRun> released;  // destroyed after the lock is released
  MutexLock lock(mutex_);
  if (--item.units_left == 0) released.swap(item.data);
}

}  // namespace cairn
