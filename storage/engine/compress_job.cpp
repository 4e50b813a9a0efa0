#include <cairn/storage/engine/compress_job.hpp>

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include <cairn/base/digest.hpp>
#include <cairn/base/error.hpp>
#include <cairn/state/profiler_range.hpp>
#include <cairn/storage/format/item_archive.hpp>

namespace cairn {
namespace {

// Returns the size of a frame before compression: a power of two, so that frames split no element.
// A frame and what it becomes fit into one staging block.
std::uint64_t frame_bytes_for(std::size_t block_bytes) {
  std::uint64_t bytes = kZstdFrameBytes;
  while (bytes + ZstdCompressor::frame_bytes_max(bytes) > block_bytes) bytes /= 2;
  return bytes;
}

}  // namespace

CompressJob::CompressJob(WriteRequest request, std::shared_ptr<StagingRing> ring, int level,
                         std::vector<StreamTransform> transforms)
    // One staging block is that of the file. A task has one for its frame or a full one, and both
    // in its turn.
    : StagedWork(1, ring->blocks_max() - 2),
      request_(std::move(request)),
      shared_ring_(std::move(ring)),
      ring_(*shared_ring_),
      level_(level),
      transforms_(std::move(transforms)),
      frame_bytes_(frame_bytes_for(ring_.block_bytes())),
      work_(RunningWork::of_this_thread()),
      streams_(CurrentStreams::capture()),
      writers_(request_.files.size()),
      results_(request_.files.size()) {
  check_invariant(ring_.blocks_max() >= 2, "compression needs two staging blocks");
}

std::exception_ptr CompressJob::cancellation() const {
  return std::make_exception_ptr(
      Error(ErrorCode::kCancelled, "writing rank " + std::to_string(request_.rank) + "'s files was cancelled"));
}

std::size_t CompressJob::begin_stage(int) {
  {
    MutexLock lock(mutex_);
    items_.resize(request_.plan->items.size());
  }
  for (std::uint32_t file = 0; file < request_.files.size(); ++file) {
    tasks_.push_back({Task::Kind::kOpen, file});
    for (const std::uint32_t item : request_.files[file].layout.unsized_items) {
      if (request_.plan->items[item].type == WriteItemType::kByteIO)
        tasks_.push_back({Task::Kind::kBytes, file, item});
      else
        add_frames(file, item);
    }
    tasks_.push_back({Task::Kind::kClose, file});
  }
  return tasks_.size();
}

void CompressJob::add_frames(std::uint32_t file, std::uint32_t item) {
  const WriteItem& planned = request_.plan->items[item];
  const std::uint64_t payload_bytes = planned.payload_bytes();
  std::size_t count = 0;
  // An empty tensor has a task, too.
  for (std::uint64_t begin = 0; begin < payload_bytes || count == 0; begin += frame_bytes_, ++count) {
    const std::uint64_t end = std::min(payload_bytes, begin + frame_bytes_);
    tasks_.push_back({Task::Kind::kFrame, file, item, begin, end, end == payload_bytes});
  }
  MutexLock lock(mutex_);
  items_[item].frames_left = count;
}

void CompressJob::run_task(int, std::size_t index) {
  try {
    if (request_.low_priority) lower_thread_priority();
    const RunningWork work(work_);
    const CurrentStreams::Scope streams(streams_);
    const Task& task = tasks_[index];
    const ProfilerRange range(task.kind == Task::Kind::kOpen    ? "open_file"
                              : task.kind == Task::Kind::kClose ? "close_file"
                                                                : "write_block");
    if (task.kind == Task::Kind::kFrame) {
      write_frame(task, index);
    } else {
      wait_for_turn(index);
      if (task.kind == Task::Kind::kOpen)
        open(task);
      else if (task.kind == Task::Kind::kBytes)
        write_bytes(task);
      else
        close(task);
    }
    std::optional<FullBlock> full;
    full.swap(writing_.full);
    {
      MutexLock lock(mutex_);
      turn_ = index + 1;
      if (full) ++writes_;
    }
    if (full) {
      changed_.notify_all();
      full->writer->write_at(full->begin, full->memory.bytes(0, full->length));
      full.reset();
      MutexLock lock(mutex_);
      --writes_;
    }
  } catch (...) {
    // Other threads may wait for their turn: records the failure, then wakes them. Taking the lock
    // once prevents a lost wake-up, because `failed` does not use this lock.
    fail(std::current_exception());
    { MutexLock lock(mutex_); }
    changed_.notify_all();
    throw;
  }
  changed_.notify_all();
}

void CompressJob::wait_for_turn(std::size_t index) {
  MutexLock lock(mutex_);
  while (!failed() && turn_ != index) changed_.wait(mutex_);
  if (failed()) throw Stopped();
}

void CompressJob::open(const Task& task) {
  const WriteFile& file = request_.files[task.file];
  CreateOptions options;  // reserves nothing, because how long the file becomes is not known
  options.direct = request_.direct;
  options.part_bytes = ring_.block_bytes();
  writers_[task.file] = request_.store->create(file.name, options);
  require_alignment(*writers_[task.file], *request_.store);
  results_[task.file].name = file.name;
  if (!writing_.memory) writing_.memory = staging_block();
  ObjectWriter& writer = *writers_[task.file];
  writing_.file.emplace(
      writer.alignment_bytes(), writing_.memory, ring_.block_bytes(),
      [this, &writer](std::uint64_t begin, StagingBlock& memory, std::size_t length) { write(writer, begin, memory, length); });
  writing_.closing = false;
  writing_.trailer = {};
}

// Leaves the block to the end of the task, if there is memory for the bytes that follow.
void CompressJob::write(ObjectWriter& writer, std::uint64_t begin, StagingBlock& memory, std::size_t length) {
  if (failed()) throw Stopped();
  char* const next = writing_.closing || writing_.full ? nullptr : ring_.try_acquire();
  if (next == nullptr) return writer.write_at(begin, memory.bytes(0, length));
  writing_.full.emplace(FullBlock{&writer, begin, std::move(memory), length});
  memory = StagingBlock(ring_, next);
}

void CompressJob::write_frame(const Task& task, std::size_t index) {
  const WriteItem& planned = request_.plan->items[task.item];
  const auto& [dtype, sizes] = std::tie(planned.properties.dtype, planned.chunk.sizes);
  const std::shared_ptr<const TensorBytes> data = resolve(task);
  const StagingBlock block = staging_block();
  const MutableByteSpan payload = block.bytes(0, static_cast<std::size_t>(task.end - task.begin));
  const MutableByteSpan frame = block.bytes(static_cast<std::size_t>(frame_bytes_), ring_.block_bytes() - frame_bytes_);
  if (!payload.empty()) data->read(task.begin, payload);
  release(task.item);
  const std::uint32_t payload_crc32 = crc32(0, payload);
  std::unique_ptr<ZstdCompressor> compressor = level_ > 0 ? take_compressor() : nullptr;
  const ByteSpan stored = compressor && !payload.empty() ? frame.subspan(0, compressor->compress(payload, frame)) : payload;

  wait_for_turn(index);
  // Prefix and suffix have frames of their own: the suffix has the checksum of the whole payload,
  // and readers of a part need both.
  if (task.begin == 0) {
    begin_item();
    writing_.payload_crc32 = 0;
    writing_.frames.clear();
    append_small_frame(item_prefix(dtype, sizes, 0), compressor.get());
  }
  if (!stored.empty()) append_frame(stored, payload.size());
  writing_.payload_crc32 = crc32_combine(writing_.payload_crc32, payload_crc32, payload.size());
  if (task.last) {
    append_small_frame(item_suffix(dtype, sizes, 0, writing_.payload_crc32), compressor.get());
    if (compressor) writing_.sink(encode_seek_table(writing_.frames));
    end_item(task);
  }
  if (!compressor) return;
  MutexLock lock(mutex_);
  idle_.push_back(std::move(compressor));
}

void CompressJob::append_small_frame(ByteSpan bytes, ZstdCompressor* compressor) {
  if (!compressor) return append_frame(bytes, bytes.size());
  Bytes frame(ZstdCompressor::frame_bytes_max(bytes.size()), '\0');
  const std::size_t length = compressor->compress(bytes, {frame.data(), frame.size()});
  append_frame({frame.data(), length}, bytes.size());
}

void CompressJob::append_frame(ByteSpan frame, std::size_t plain_bytes) {
  writing_.sink(frame);
  writing_.frames.push_back({static_cast<std::uint32_t>(frame.size()), static_cast<std::uint32_t>(plain_bytes)});
}

void CompressJob::write_bytes(const Task& task) {
  const Bytes bytes = resolve_bytes(request_, task.item);
  begin_item();
  if (!bytes.empty()) writing_.sink(bytes);
  end_item(task);
}

void CompressJob::begin_item() {
  writing_.item_begin = writing_.file->position();
  writing_.stored_crc32 = 0;
  writing_.item_ended = false;
  writing_.sink = [this](ByteSpan bytes) {
    writing_.item_ended = bytes.empty();
    writing_.stored_crc32 = crc32_combine(writing_.stored_crc32, writing_.file->append(bytes), bytes.size());
  };
  for (const StreamTransform& transform : transforms_) writing_.sink = transform.transform_to(std::move(writing_.sink));
}

// The trailer gives the stored bytes as the payload: the elements have no place in the file.
void CompressJob::end_item(const Task& task) {
  writing_.sink({});
  writing_.sink = nullptr;
  if (!writing_.item_ended)
    throw Error(ErrorCode::kInternal, "a stream transform did not pass on the end of an item: " +
                                          std::to_string(transforms_.size()) + " transforms are in use");
  results_[task.file].bytes_item_lengths.push_back(writing_.file->position() - writing_.item_begin);
  TrailerItem entry = trailer_item_of(*request_.plan, task.item);
  entry.offset = entry.payload_offset = writing_.item_begin;
  entry.length = entry.payload_bytes = writing_.file->position() - writing_.item_begin;
  entry.payload_crc32 = writing_.stored_crc32;
  writing_.trailer.items.push_back(std::move(entry));
}

void CompressJob::close(const Task& task) {
  {
    MutexLock lock(mutex_);
    while (!failed() && writes_ > 0) changed_.wait(mutex_);
    if (failed()) throw Stopped();
  }
  writing_.closing = true;
  FileAppender& file = *writing_.file;
  Trailer& trailer = writing_.trailer;
  trailer.save_id = request_.save_id;
  trailer.rank = request_.rank;
  trailer.content_bytes = file.position();
  const BlockChecksums& checksums = file.end_content();
  trailer.block_crc32 = checksums.blocks();
  const Bytes encoded = encode_trailer(trailer);
  file.append_trailer(encoded);
  FileResult& result = results_[task.file];
  result.crc32 = crc32(checksums.whole(), encoded);
  result.trailer_length_bytes = static_cast<std::uint32_t>(encoded.size());
  result.length_bytes = file.finish();
  if (request_.sync)
    writers_[task.file]->sync(result.length_bytes);
  else
    writers_[task.file]->close(result.length_bytes);
  writing_.file.reset();
}

// The task of an item's first frame resolves it. Tasks begin in order, so it is done or under way
// when those of later frames begin.
std::shared_ptr<const TensorBytes> CompressJob::resolve(const Task& task) {
  if (task.begin > 0) {
    MutexLock lock(mutex_);
    while (!failed() && !items_[task.item].data) changed_.wait(mutex_);
    if (failed()) throw Stopped();
    return items_[task.item].data;
  }
  auto data = resolve_tensor(request_, task.item);
  {
    MutexLock lock(mutex_);
    items_[task.item].data = data;
  }
  changed_.notify_all();
  return data;
}

void CompressJob::release(std::uint32_t item) {
  std::shared_ptr<const TensorBytes> released;  // destroyed after the lock is released
  MutexLock lock(mutex_);
  if (--items_[item].frames_left == 0) released.swap(items_[item].data);
}

StagingBlock CompressJob::staging_block() {
  char* memory = ring_.try_acquire();
  check_invariant(memory != nullptr, "there must be a staging block for every task that runs");
  return {ring_, memory};
}

std::unique_ptr<ZstdCompressor> CompressJob::take_compressor() {
  {
    MutexLock lock(mutex_);
    if (!idle_.empty()) {
      std::unique_ptr<ZstdCompressor> compressor = std::move(idle_.back());
      idle_.pop_back();
      return compressor;
    }
  }
  return std::make_unique<ZstdCompressor>(level_);
}

void CompressJob::finish() noexcept {
  const std::exception_ptr failure = error();
  writing_.sink = nullptr;
  writing_.file.reset();
  writing_.full.reset();
  writing_.memory.release();
  tasks_.clear();
  {
    MutexLock lock(mutex_);
    items_.clear();
    idle_.clear();
  }
  if (failure)
    for (const auto& writer : writers_)
      // Removes finished files as well: without a commit record nobody reads them.
      if (writer) writer->discard();
  writers_.clear();
  set_ended(failure, std::move(results_));
}

}  // namespace cairn
