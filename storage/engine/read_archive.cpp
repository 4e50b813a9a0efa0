// Reads items of PyTorch's own files. Only the archive itself tells where the elements are and how
// they are laid out.
#include <algorithm>
#include <limits>
#include <utility>

#include <torch/torch.h>

#include <cairn/base/digest.hpp>
#include <cairn/base/error.hpp>
#include <cairn/base/mutex.hpp>
#include <cairn/state/tensor_types.hpp>
#include <cairn/storage/engine/read_job.hpp>

namespace cairn {

void ReadJob::read_archive(const Task& task, bool verify_only) {
  const Item& first = items_[task.items.front()];
  const StorageInfo& storage = *first.storage;
  const ObjectName& file = task.file->info->name;
  try {
    const TorchArchive archive(
        storage.length,
        [&](std::uint64_t offset, MutableByteSpan to) {
          request_.store->read(file, {{storage.offset + offset, to}});
        },
        "\"" + name_of(first) + "\" in " + url_of(storage) + " at offset " + std::to_string(storage.offset));
    const ArchivedTensor stored = read_archived_tensor(archive);
    const TensorDescription& tensor = stored.description;
    // The metadata and the archive are two descriptions of one tensor. Reading by the wrong one
    // would fill in wrong values without an error.
    if (tensor.sizes != *first.chunk_sizes || tensor.dtype != first.stored_dtype)
      throw Error(ErrorCode::kCorrupt, "it holds a tensor of " + to_string(tensor.sizes) + " " + to_string(tensor.dtype) +
                                           ", but the metadata say " + to_string(*first.chunk_sizes) + " " +
                                           to_string(first.stored_dtype));
    if (tensor.is_contiguous() && !tensor.is_conjugated && !tensor.is_negated)
      copy_dense(task, archive, stored, verify_only);
    else if (verify_only)
      check_strided(archive, stored);
    else
      copy_strided(task, archive, stored);
  } catch (const Error&) {
    rethrow_for(first);
  }
  if (verify_only) return;
  for (const std::uint32_t item : task.items) release(items_[item]);
}

void ReadJob::copy_dense(const Task& task, const TorchArchive& archive, const ArchivedTensor& stored, bool verify_only) {
  const StorageInfo& storage = *items_[task.items.front()].storage;
  const std::uint64_t storage_begin = storage.offset + stored.storage.offset;
  const std::size_t element_bytes = element_size(stored.description.dtype);
  const std::uint64_t elements_begin = storage_begin + stored.description.storage_offset * element_bytes;
  const bool check_all = request_.verify || request_.verify_first;

  // All items of the archive are filled in one pass, so that its bytes are read once.
  std::vector<std::pair<Region, std::shared_ptr<Destination>>> wanted;
  std::uint64_t begin = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t end = 0;
  for (const std::uint32_t index : task.items) {
    Item& item = items_[index];
    Region region(elements_begin, *item.chunk_sizes, item.item->storage_offsets, item.item->lengths, element_bytes);
    for (const Region::Span& span : region.spans(std::numeric_limits<std::uint64_t>::max())) {
      begin = std::min(begin, span.begin);
      end = std::max(end, span.end);
    }
    if (!verify_only) wanted.emplace_back(std::move(region), resolve(item));
  }
  if (check_all) {  // the only checksum covers the whole storage
    begin = storage_begin;
    end = storage_begin + stored.storage.size_bytes;
  }

  const StagingBlock staging = staging_block();
  std::uint32_t crc = 0;
  for (std::uint64_t at = begin; at < end && !failed();) {
    const std::uint64_t next = std::min(end, at + ring_.block_bytes());
    const MutableByteSpan bytes = staging.bytes(0, static_cast<std::size_t>(next - at));
    request_.store->read(task.file->info->name, {{at, bytes}});
    if (check_all) crc = crc32(crc, bytes);
    for (auto& [region, destination] : wanted)
      region.visit(at, next, [&, &to = destination](std::uint64_t offset, std::uint64_t position, std::uint64_t length) {
        to->write(position, {bytes.data() + (offset - at), static_cast<std::size_t>(length)});
      });
    at = next;
  }
  if (check_all && !failed() && crc != stored.storage.crc32)
    throw Error(ErrorCode::kCorrupt, archive.what() + " is damaged: the checksum of its elements does not match");
}

// read_storage compares the CRC-32; its result is not needed.
void ReadJob::check_strided(const TorchArchive& archive, const ArchivedTensor& stored) {
  // These storages are held in memory as a whole, outside of the staging blocks. One at a time
  // bounds that memory.
  MutexLock one_at_a_time(strided_mutex_);
  archive.read_storage(stored.description.storage_key);
}

// PyTorch may store views: transposed, expanded or lazily conjugated. LibTorch makes the same view
// of the stored bytes, and its elements are copied one after another.
void ReadJob::copy_strided(const Task& task, const TorchArchive& archive, const ArchivedTensor& stored) {
  MutexLock one_at_a_time(strided_mutex_);
  const TensorDescription& tensor = stored.description;
  Bytes elements = archive.read_storage(tensor.storage_key);
  const torch::ScalarType dtype = items_[task.items.front()].dtype;
  const auto element_bytes = static_cast<std::int64_t>(c10::elementSize(dtype));
  const torch::Tensor source = with_torch("view " + archive.what(), [&] {
    torch::Tensor flat = torch::from_blob(elements.data(), {static_cast<std::int64_t>(elements.size()) / element_bytes},
                                          torch::TensorOptions().dtype(dtype));
    torch::Tensor view =
        flat.as_strided(array_of(tensor.sizes), array_of(tensor.strides), static_cast<std::int64_t>(tensor.storage_offset));
    if (tensor.is_conjugated) view = view.conj();
    // The view has the flag that PyTorch stored; the copy below resolves it.
    if (tensor.is_negated) view = torch::_neg_view(view);
    return view;
  });

  const StagingBlock staging = staging_block();
  for (const std::uint32_t index : task.items) {
    Item& item = items_[index];
    const auto destination = resolve(item);
    const TensorBytes from(part_of(source, item.item->storage_offsets, item.item->lengths));
    for (std::uint64_t at = 0; at < from.size_bytes() && !failed();) {
      const auto length = static_cast<std::size_t>(std::min<std::uint64_t>(from.size_bytes() - at, ring_.block_bytes()));
      from.read(at, staging.bytes(0, length));
      destination->write(at, staging.bytes(0, length));
      at += length;
    }
  }
}

}  // namespace cairn
