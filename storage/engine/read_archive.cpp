// Reads wrapped items: those of PyTorch's own files, where only the archive itself tells where the
// elements are and how they are laid out, and compressed ones.
#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include <cairn/base/digest.hpp>
#include <cairn/base/error.hpp>
#include <cairn/base/mutex.hpp>
#include <cairn/storage/engine/read_job.hpp>
#include <cairn/storage/engine/strided_bytes.hpp>
#include <cairn/storage/format/names.hpp>

namespace cairn {

// Reads a range of a data file, in whole checksum blocks if they are checked.
void ReadJob::read_stored(File& file, std::uint64_t offset, MutableByteSpan to) {
  stop_if_failed();
  if (!file.is_checked()) return file.opened->store->read(file.info->name, {{offset, to}});
  const std::uint64_t grid = file.grid_bytes();
  const std::uint64_t begin = offset / grid * grid;
  const std::uint64_t end = std::min(file.content_bytes(), (offset + to.size() + grid - 1) / grid * grid);
  Bytes blocks(static_cast<std::size_t>(end - begin), '\0');
  file.opened->store->read(file.info->name, {{begin, {blocks.data(), blocks.size()}}});
  check_blocks(file.opened->block_crc32, grid, begin, blocks, [&](std::uint64_t at, ByteSpan block) {
    if (!read_again(file, at, {blocks.data() + (at - begin), block.size()}))
      throw Error(ErrorCode::kCorrupt, "it is damaged between offsets " + std::to_string(at) + " and " +
                                           std::to_string(at + block.size()) +
                                           " (the checksum does not match). Load another checkpoint");
  });
  std::memcpy(to.data(), blocks.data() + (offset - begin), to.size());
}

// Without block checksums, the only checksum covers the whole storage.
bool ReadJob::checks_archives(const File& file) const { return (request_.verify || request_.verify_first) && !file.is_checked(); }

void ReadJob::read_wrapped(const Task& task, bool verify_only, ByteSpan stored) {
  Item& first = items_[task.items.front()];
  const StorageInfo& storage = *first.storage;
  const std::string what = "\"" + name_of(first) + "\" in " + url_of(storage) + " at offset " + std::to_string(storage.offset);
  try {
    std::optional<OpenedItem> opened = request_.opened->take_item(storage);
    const auto reader = opened ? opened->read_stored : std::make_shared<ZipReader::ReadAt>();
    *reader = [&](std::uint64_t offset, MutableByteSpan to) {
      if (stored.empty()) return read_stored(*task.file, storage.offset + offset, to);
      if (offset > stored.size() || to.size() > stored.size() - offset)
        throw Error(ErrorCode::kCorrupt, "it ends before byte " + std::to_string(offset + to.size()) + " of its contents");
      std::memcpy(to.data(), stored.data() + offset, to.size());
    };
    if (!opened)
      opened = OpenedItem{undo_transforms(
                              storage, first.tensor ? first.tensor->properties.dtype : DType::kUnknown,
                              first.tensor ? &first.chunk->sizes : nullptr,
                              [reader](std::uint64_t offset, MutableByteSpan to) { (*reader)(offset, to); }, what),
                          reader};
    if (first.item->type == LoadItemType::kByteIO)
      read_object(first, opened->item, verify_only);
    else
      read_archive(task, opened->item, what, verify_only);
    *reader = nullptr;
    if (request_.keep_blocks) request_.opened->keep_item(storage, *std::move(opened));
  } catch (const Error&) {
    rethrow_for(first);
  }
  if (verify_only) return;
  for (const std::uint32_t item : task.items) release(items_[item]);
}

void ReadJob::read_object(Item& item, const PlainItem& stored, bool verify_only) {
  Bytes bytes(static_cast<std::size_t>(stored.size_bytes), '\0');
  stored.read_at(0, {bytes.data(), bytes.size()});
  if (!verify_only) resolve(item)->bytes = std::move(bytes);
}

void ReadJob::read_archive(const Task& task, const PlainItem& item, const std::string& what, bool verify_only) {
  const Item& first = items_[task.items.front()];
  const TorchArchive archive(item.size_bytes, item.read_at, what);
  if (!archive.has_checksums() && is_cairns_file(task.file->info->name))
    throw Error(ErrorCode::kCorrupt, archive.what() + " is damaged: its archive has no checksums");
  const ArchivedTensor stored = read_archived_tensor(archive);
  const TensorDescription& tensor = stored.description;
  // The metadata and the archive are two descriptions of one tensor. Reading by the wrong one would
  // fill in wrong values without an error.
  const DType dtype = first.tensor->properties.dtype;
  if (tensor.sizes != first.chunk->sizes || tensor.dtype != dtype)
    throw Error(ErrorCode::kCorrupt, "it holds a tensor of " + to_string(tensor.sizes) + " " + to_string(tensor.dtype) +
                                         ", but the metadata say " + to_string(first.chunk->sizes) + " " + to_string(dtype));
  if (tensor.is_contiguous() && !tensor.is_conjugated && !tensor.is_negated)
    copy_dense(task, archive, stored, item.read_at, verify_only);
  else if (task.share.begin > 0)
    return;  // the first share reads all of it
  else if (verify_only)
    check_strided(archive, stored);
  else
    copy_strided(task, archive, stored);
}

void ReadJob::copy_dense(const Task& task, const TorchArchive& archive, const ArchivedTensor& stored,
                         const ZipReader::ReadAt& read_at, bool verify_only) {
  const std::uint64_t elements_begin =
      stored.storage.offset + stored.description.storage_offset * element_size(stored.description.dtype);
  const bool check_all = checks_archives(*task.file);

  // All items of the archive are filled in one pass, so that its bytes are read once.
  std::vector<std::pair<Region, std::shared_ptr<Destination>>> wanted;
  std::vector<Piece> pieces;
  for (const std::uint32_t index : task.items) {
    Item& item = items_[index];
    Region region = item.region_at(elements_begin);
    for (const Region::Span& span : region.spans(kGapBytesMax)) {
      const std::uint64_t begin = std::max(span.begin - elements_begin, task.share.begin);
      const std::uint64_t end = std::min(span.end - elements_begin, task.share.end);
      if (begin < end) pieces.push_back({elements_begin + begin, elements_begin + end});
    }
    if (!verify_only) wanted.emplace_back(std::move(region), resolve(item));
  }
  if (check_all) pieces = {{stored.storage.offset, stored.storage.offset + stored.storage.size_bytes}};
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.begin < b.begin; });

  const StagingBlock staging = staging_block();
  std::uint32_t crc = 0;
  std::uint64_t at = 0;
  for (const Piece& piece : pieces) {
    at = std::max(at, piece.begin);
    while (at < piece.end && !failed()) {
      const std::uint64_t next = std::min(piece.end, at + ring_.block_bytes());
      const MutableByteSpan bytes = staging.bytes(0, static_cast<std::size_t>(next - at));
      read_at(at, bytes);
      if (check_all) crc = crc32(crc, bytes);
      for (auto& [region, destination] : wanted)
        region.visit(at, next, [&, &to = destination](std::uint64_t offset, std::uint64_t position, std::uint64_t length) {
          to->write(position, {bytes.data() + (offset - at), static_cast<std::size_t>(length)});
        });
      at = next;
    }
  }
  stop_if_failed();  // the tensors are incomplete: nobody may commit them
  if (check_all && stored.storage.crc32 && crc != *stored.storage.crc32)
    throw Error(ErrorCode::kCorrupt, archive.what() + " is damaged: the checksum of its elements does not match");
}

// read_storage compares the CRC-32; its result is not needed.
void ReadJob::check_strided(const TorchArchive& archive, const ArchivedTensor& stored) {
  // These storages are held in memory as a whole, outside of the staging blocks. One at a time
  // bounds that memory.
  MutexLock one_at_a_time(strided_mutex_);
  archive.read_storage(stored.description.storage_key);
}

// PyTorch may store views: transposed, expanded, or lazily conjugated or negated.
void ReadJob::copy_strided(const Task& task, const TorchArchive& archive, const ArchivedTensor& stored) {
  MutexLock one_at_a_time(strided_mutex_);
  const TensorDescription& tensor = stored.description;
  Bytes elements = archive.read_storage(tensor.storage_key);
  const std::size_t element_bytes = element_size(tensor.dtype);
  const StagingBlock staging = staging_block();
  for (const std::uint32_t index : task.items) {
    Item& item = items_[index];
    const auto destination = resolve(item);
    std::uint64_t first = tensor.storage_offset;
    for (std::size_t dim = 0; dim < tensor.strides.size(); ++dim)
      first += static_cast<std::uint64_t>(item.item->storage_offsets[dim] * tensor.strides[dim]);
    const StridedBytes from(elements.data() + first * element_bytes, item.item->lengths, tensor.strides, element_bytes);
    for (std::uint64_t at = 0; at < from.size_bytes() && !failed();) {
      const auto length = static_cast<std::size_t>(std::min<std::uint64_t>(from.size_bytes() - at, ring_.block_bytes()));
      const MutableByteSpan part = staging.bytes(0, length);
      from.read(at, part);
      apply_lazy_bits(part, tensor.dtype, tensor.is_conjugated, tensor.is_negated);
      destination->write(at, part);
      at += length;
    }
  }
  stop_if_failed();
}

}  // namespace cairn
