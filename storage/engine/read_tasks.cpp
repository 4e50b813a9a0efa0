// Decides which byte ranges a load reads: turns its plan into the tasks of ReadJob.
#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include <cairn/base/error.hpp>
#include <cairn/storage/engine/read_job.hpp>
#include <cairn/storage/format/trailer.hpp>

namespace cairn {
namespace {

// Limit on the ranges in one call to the store.
constexpr std::size_t kPiecesMax = 512;
// Tasks that share a compressed tensor decompress at least so many bytes each, in whole frames.
// More tasks than the limit would only open the item more often.
constexpr std::uint64_t kShareBytesMin = 16 * kZstdFrameBytes;
constexpr std::uint64_t kSharesMax = 64;

}  // namespace

ReadJob::File& ReadJob::file_of(const StorageInfo& storage) {
  const Metadata& metadata = *request_.metadata;
  if (storage.file >= metadata.files.size())
    throw Error(ErrorCode::kCorrupt, "the metadata of " + request_.store->url() + " names a file that it does not list");
  File*& file = file_by_index_[storage.file];
  if (!file) {
    // Only files that the plan needs. A checkpoint of a thousand ranks has a thousand files.
    files_.push_back(std::make_unique<File>());
    file = files_.back().get();
    file->info = &metadata.files[storage.file];
  }
  return *file;
}

void ReadJob::add_item(std::uint32_t index) {
  const LoadPlan& plan = *request_.plan;
  const ReadItem& item = plan.items[index];
  const std::string& fqn = plan.names[item.storage_name];
  Item& planned = items_[index];
  planned.item = &item;
  const Metadata::Entry* entry = request_.metadata->find(fqn);
  const bool is_bytes = item.type == LoadItemType::kByteIO;
  if (!entry || std::holds_alternative<BytesStorageMetadata>(*entry) != is_bytes)
    throw Error(ErrorCode::kMismatch, "the plan asks for the " + std::string(is_bytes ? "bytes object" : "tensor") + " \"" + fqn +
                                          "\", which the checkpoint at " + request_.store->url() + " does not have");
  if (is_bytes) {
    const auto& stored = std::get<BytesStorageMetadata>(*entry);
    if (stored.storage) planned.storage = &*stored.storage;
  } else {
    const auto& stored = std::get<TensorStorageMetadata>(*entry);
    // A user-defined planner may know a chunk only by its offset.
    std::size_t chunk = item.storage_chunk;
    if (chunk >= stored.chunks.size() || stored.chunks[chunk].offsets != item.storage_chunk_offset)
      for (chunk = 0; chunk < stored.chunks.size() && stored.chunks[chunk].offsets != item.storage_chunk_offset;) ++chunk;
    if (chunk == stored.chunks.size())
      throw Error(ErrorCode::kMismatch, "the plan asks for the chunk of \"" + fqn + "\" that begins at " +
                                            to_string(item.storage_chunk_offset) + ", which the checkpoint at " +
                                            request_.store->url() + " does not have");
    if (chunk < stored.storage.size()) planned.storage = &stored.storage[chunk];
    planned.tensor = &stored;
    planned.chunk = &stored.chunks[chunk];
    if (stored.properties.dtype == DType::kUnknown)
      throw Error(ErrorCode::kUnsupported, "\"" + fqn + "\" is stored as torch." + stored.unknown_dtype +
                                               ", which this version of Cairn does not know: use a newer one");
  }
  if (!planned.storage)
    throw Error(ErrorCode::kUnsupported,
                "the metadata of " + request_.store->url() + " does not say where \"" + fqn +
                    "\" is stored: it was written by a storage writer of another kind, read it with its reader");
  const StorageInfo& storage = *planned.storage;
  if (const std::string reason = why_not_undone(storage.transforms); !reason.empty())
    throw Error(ErrorCode::kUnsupported, "cannot read \"" + fqn + "\" in " + url_of(storage) + ": " + reason);
  // Items without bytes need no file, not even an existing one.
  if (is_bytes ? storage.length > 0 : volume(item.lengths) > 0) file_of(storage);
  if (is_bytes)
    planned.region = Region(storage.offset, storage.length);
  else if (!planned.is_wrapped())
    planned.region = planned.region_at(storage.payload_offset);
  else  // the archive gives the location; check the requested box now
    planned.region_at(0);
}

void ReadJob::throw_beyond_end(const Item& item) const {
  throw Error(ErrorCode::kCorrupt, "rank " + std::to_string(request_.rank) + " cannot read \"" + name_of(item) + "\" from " +
                                       url_of(*item.storage) + ": by the metadata it lies at offset " +
                                       std::to_string(item.storage->offset) + ", beyond the end of the file");
}

void ReadJob::make_tasks() {
  // Wrapped items: one task serves all items of one chunk of a tensor, and each bytes object has
  // its own. Two names may stand for one place, and their descriptions may differ.
  std::map<std::tuple<std::uint32_t, std::uint64_t, NameId, std::uint32_t, std::uint32_t>, Task> archives;
  Task empty;
  for (std::uint32_t index = 0; index < items_.size(); ++index) {
    Item& item = items_[index];
    const bool is_bytes = item.item->type == LoadItemType::kByteIO;
    const bool wrapped = item.is_wrapped();
    const bool no_bytes = is_bytes ? item.storage->length == 0 : volume(item.item->lengths) == 0;
    if (no_bytes) {
      empty.items.push_back(index);
      item.missing = 1;
    } else if (wrapped) {
      Task& task = archives[{item.storage->file, item.storage->offset, item.item->storage_name,
                             is_bytes ? 0 : item.item->storage_chunk + 1, is_bytes ? index : 0}];
      task.wrapped = true;
      task.file = &file_of(*item.storage);
      const StorageInfo& storage = *item.storage;
      // Subtracts, because offset + length may overflow in damaged metadata.
      if (storage.length > task.file->content_bytes() || storage.offset > task.file->content_bytes() - storage.length)
        throw_beyond_end(item);
      task.items.push_back(index);
    } else {
      File& file = file_of(*item.storage);
      for (const Region::Span& span : item.region.spans(kGapBytesMax)) file.spans.push_back({span, index});
    }
  }
  for (auto& [place, task] : archives) {
    Item& first = items_[task.items.front()];
    if (!is_shared(*first.storage)) {
      add_archive(std::move(task));
      continue;
    }
    for (const std::uint32_t item : task.items) items_[item].missing = 1;
    // The first item stands for the stored bytes, which are read as plain ones.
    first.missing = 0;
    first.region = Region(first.storage->offset, first.storage->length);
    for (const Region::Span& span : first.region.spans(kGapBytesMax)) task.file->spans.push_back({span, task.items.front()});
    first.wrapped = std::make_shared<Task>(std::move(task));
  }
  // Readers send in this order.
  std::sort(files_.begin(), files_.end(), [](const auto& a, const auto& b) { return a->info < b->info; });
  for (const auto& file : files_) make_tasks(*file);
  if (!empty.items.empty()) tasks_.push_back(std::move(empty));
  for (Item& item : items_) item.in_one_task = item.missing == 1 && !item.wrapped;
  if (request_.shared) sort_out_shared();
}

// Frames that Cairn compressed are independent, so that several threads can share a large tensor.
void ReadJob::add_archive(Task task) {
  const Item& first = items_[task.items.front()];
  std::uint64_t begin = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t end = 0;
  if (first.tensor && first.storage->transforms == std::vector<std::string>{kZstdTransform} && request_.metadata->commit &&
      !checks_archives(*task.file))
    for (const std::uint32_t index : task.items) {
      const std::vector<Region::Span> spans = items_[index].region_at(0).spans(std::numeric_limits<std::uint64_t>::max());
      begin = std::min(begin, spans.front().begin);
      end = std::max(end, spans.back().end);
    }
  const std::uint64_t share_bytes = begin < end ? kShareBytesMin * (1 + (end - begin) / (kShareBytesMin * kSharesMax)) : 0;
  std::size_t shares = 0;
  for (; begin < end && end - begin > share_bytes; ++shares) {
    const std::uint64_t cut = (begin / share_bytes + 1) * share_bytes;
    tasks_.push_back(task);
    tasks_.back().share = {shares == 0 ? 0 : begin, cut};
    begin = cut;
  }
  if (shares > 0) task.share.begin = begin;
  for (const std::uint32_t item : task.items) items_[item].missing = shares + 1;
  tasks_.push_back(std::move(task));
}

void ReadJob::make_tasks(File& file) {
  const std::size_t first_task = tasks_.size();
  std::vector<Span>& spans = file.spans;
  // In file order, so that disks and caches see ascending reads.
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) {
    return std::tie(a.range.begin, a.range.end, a.item) < std::tie(b.range.begin, b.range.end, b.item);
  });
  for (const Span& span : spans)
    if (span.range.end > file.content_bytes()) throw_beyond_end(items_[span.item]);

  // Merges the ranges that the spans need, in whole checksum blocks if they are checked or shared,
  // and cuts the result into tasks. Shared ones must be equal on all ranks.
  const bool whole_blocks = file.is_checked() || request_.shared;
  const std::uint64_t grid = file.grid_bytes();
  Task task;
  task.file = &file;
  std::uint64_t task_bytes = 0;
  Piece piece;
  for (const Span& span : spans) {
    Piece wanted{span.range.begin, span.range.end};
    if (whole_blocks) {
      wanted.begin = wanted.begin / grid * grid;
      wanted.end = std::min(file.content_bytes(), (wanted.end + grid - 1) / grid * grid);
    }
    if (wanted.begin > piece.end) {
      add_piece(file, piece, task, task_bytes);
      piece = wanted;
    } else {
      // The first span begins the first piece.
      if (piece.begin == piece.end) piece.begin = wanted.begin;
      piece.end = std::max(piece.end, wanted.end);
    }
  }
  add_piece(file, piece, task, task_bytes);
  if (!task.pieces.empty()) tasks_.push_back(std::move(task));

  // Finds the spans that meet each task. Spans and tasks ascend; a span stays active until its end.
  std::vector<std::uint32_t> active;
  std::size_t next = 0;
  for (std::size_t i = first_task; i < tasks_.size(); ++i) {
    Task& made = tasks_[i];
    const std::uint64_t begin = made.pieces.front().begin;
    const std::uint64_t end = made.pieces.back().end;
    while (next < spans.size() && spans[next].range.begin < end) active.push_back(static_cast<std::uint32_t>(next++));
    active.erase(std::remove_if(active.begin(), active.end(), [&](std::uint32_t span) { return spans[span].range.end <= begin; }),
                 active.end());
    made.spans = active;
    // An item is committed when all tasks that hold a part of it are done.
    for (const std::uint32_t span : active) ++items_[spans[span].item].missing;
  }
}

// Cuts where other ranks begin or end to share the bytes. What is shared was planned in blocks of
// kChecksumBlockBytes; a file with other blocks is not.
void ReadJob::add_piece(File& file, Piece piece, Task& task, std::uint64_t& task_bytes) {
  if (request_.shared && file.grid_bytes() == kChecksumBlockBytes) {
    const auto index = static_cast<std::uint32_t>(index_of(file));
    for (auto next = shared_after(index, piece.begin);
         next != request_.shared->ranges.end() && next->bytes.file == index && next->bytes.begin < piece.end; ++next) {
      add_part(file, {piece.begin, std::max(piece.begin, next->bytes.begin)}, nullptr, task, task_bytes);
      piece.begin = std::max(piece.begin, next->bytes.begin);
      const std::uint64_t end = std::min(piece.end, next->bytes.end);
      add_part(file, {piece.begin, end}, &*next, task, task_bytes);
      piece.begin = end;
    }
  }
  add_part(file, piece, nullptr, task, task_bytes);
}

// Cuts at multiples of the grid, so that no checksum block is split.
void ReadJob::add_part(File& file, Piece piece, const SharedRange* shared, Task& task, std::uint64_t& task_bytes) {
  const std::uint64_t limit = ring_.block_bytes();
  const std::uint64_t grid = file.grid_bytes();
  while (piece.begin < piece.end) {
    const auto hand_over = [&] {
      tasks_.push_back(std::exchange(task, {}));
      task.file = &file;
      task_bytes = 0;
    };
    const bool goes_with = task.shared == shared || (task.shared && shared && task.shared->reader == shared->reader &&
                                                     task.shared->receivers == shared->receivers);
    if (task.pieces.size() == kPiecesMax || (!task.pieces.empty() && !goes_with)) hand_over();
    task.shared = shared;
    std::uint64_t end = piece.end;
    if (task_bytes + (end - piece.begin) > limit) {
      end = (piece.begin + (limit - task_bytes)) / grid * grid;
      if (end <= piece.begin) {
        check_invariant(!task.pieces.empty(), "a checksum block must fit into a staging block");
        hand_over();
        continue;
      }
    }
    task.pieces.push_back({piece.begin, end});
    task_bytes += end - piece.begin;
    piece.begin = end;
  }
}

}  // namespace cairn
