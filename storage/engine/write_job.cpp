#include <cairn/storage/engine/write_job.hpp>

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include <cairn/base/error.hpp>
#include <cairn/base/parallel.hpp>
#include <cairn/base/profiler_range.hpp>
#include <cairn/formats/safetensors.hpp>
#include <cairn/storage/engine/reusable_files.hpp>
#include <cairn/storage/format/names.hpp>

namespace cairn {
namespace {

constexpr int kIoClassIdle = 3 << 13;  // IOPRIO_CLASS_IDLE; has no libc header
constexpr int kIoOfThread = 1;         // IOPRIO_WHO_PROCESS

// Lowers the priority of the calling thread. If a sandbox refuses, the thread runs at normal
// priority.
void lower_thread_priority() noexcept {
  // On Linux both calls apply to one thread, although their names say process.
  setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), 19);
  syscall(SYS_ioprio_set, kIoOfThread, 0, kIoClassIdle);
}

// Throws kUnsupported if staging blocks do not have the alignment that a writer of `store` needs.
void require_alignment(const ObjectWriter& writer, const Store& store) {
  const std::size_t bytes = writer.alignment_bytes();
  if (bytes == 0 || StagingRing::kAlignmentBytes % bytes != 0)
    throw Error(ErrorCode::kUnsupported, "the store at " + store.url() + " asks for writes aligned to " + std::to_string(bytes) +
                                             " bytes; at most " + std::to_string(StagingRing::kAlignmentBytes) +
                                             " is possible: turn direct_io off");
}

// Returns the size of a frame before compression: a power of two, so that frames split no element.
// A frame and what it becomes fit into one staging block.
std::uint64_t frame_bytes_for(std::size_t block_bytes) {
  std::uint64_t bytes = kZstdFrameBytes;
  while (bytes + ZstdCompressor::frame_bytes_max(bytes) > block_bytes) bytes /= 2;
  return bytes;
}

// One more than threads: while the last blocks of a file are written, the next file can be opened.
// With `blocks`, each open file keeps one of them; most are left for units.
unsigned files_open_max(unsigned threads, std::size_t blocks) {
  return blocks == 0 ? threads + 1 : static_cast<unsigned>(std::clamp<std::size_t>(blocks / 3, 1, threads + 1));
}

}  // namespace

std::uint64_t expected_bytes(const SavePlan& plan, const FileLayout& layout) {
  std::uint64_t content = layout.tensors_end;
  // Compressed tensors are taken to be as long as their elements.
  for (const std::uint32_t item : layout.unsized_items) content += plan.items[item].payload_bytes();
  const std::uint64_t checksums = content / kChecksumBlockBytes * sizeof(std::uint32_t);
  constexpr std::uint64_t kOtherTrailerBytes = 128;  // estimate
  return content + checksums + kOtherTrailerBytes;
}

WriteJob::WriteJob(WriteRequest request, std::shared_ptr<StagingRing> ring, unsigned threads, ItemChanges changes)
    : Job("writing rank " + std::to_string(request.rank) + "'s files"),
      request_(std::move(request)),
      shared_ring_(std::move(ring)),
      ring_(*shared_ring_),
      changes_(std::move(changes)),
      files_open_max_(files_open_max(threads, changes_.any() ? ring_.blocks_max() : 0)),
      frame_bytes_(changes_.any() ? frame_bytes_for(ring_.block_bytes()) : 0),
      work_(RunningWork::of_this_thread()),
      files_(request_.files.size()) {
  check_invariant(!changes_.any() || ring_.blocks_max() >= 2, "items that change need two staging blocks");
  for (std::size_t i = 0; i < files_.size(); ++i) {
    files_[i].source = &request_.files[i];
    units_to_copy_ += files_[i].units = request_.files[i].layout.tensors_end / ring_.block_bytes();
  }
  plan_digests();
}

WriteJob::~WriteJob() = default;

void WriteJob::run(unsigned threads) noexcept {
  try {
    for_each_in_parallel(threads, threads, [this](std::size_t) { serve(); });
  } catch (...) {
    fail(std::current_exception());
  }
  finish();
}

void WriteJob::serve() noexcept {
  if (request_.low_priority) lower_thread_priority();
  std::shared_ptr<void> entered;
  File* own = nullptr;
  while (true) {
    std::optional<Task> task;
    try {
      if (!entered) entered = request_.source->enter_thread();
      MutexLock lock(mutex_);
      changed_.wait(mutex_, [&]() CAIRN_REQUIRES(mutex_) {
        return failed() || closed_ == files_.size() || (task = next_task(own)).has_value();
      });
    } catch (...) {
      fail(std::current_exception());
    }
    if (!task || failed()) return;
    own = task->file;
    try {
      perform(*task);
    } catch (...) {
      fail(std::current_exception());
    }
    changed_.notify_all();
  }
}

// Blocks that `write_block` left to be written come last.
std::optional<WriteJob::Task> WriteJob::next_task(File* own) {
  if (digests_left_ > 0) return next_to_digest();
  if (own)
    if (auto task = next_task_of(*own)) return task;
  if (auto task = next_to_open()) return task;
  // Earlier files come first, so that few files are open and each is closed early.
  for (std::size_t i = first_open_; i < next_to_open_; ++i)
    if (auto task = next_task_of(files_[i])) return task;
  if (copied_first_.empty()) return std::nullopt;
  Block* const block = copied_first_.back();
  copied_first_.pop_back();
  return Task{Task::Kind::kWrite, block->file, block};
}

std::optional<WriteJob::Task> WriteJob::next_to_open() {
  while (first_open_ < files_.size() && files_[first_open_].stage == Stage::kClosed) ++first_open_;
  if (next_to_open_ == files_.size()) return std::nullopt;
  std::size_t open = 0;
  for (std::size_t i = first_open_; i < next_to_open_; ++i) open += files_[i].stage != Stage::kClosed;
  if (open >= files_open_max_) return std::nullopt;
  File& file = files_[next_to_open_];
  Block* tail = nullptr;
  if (changes_.any()) {
    // The file keeps a block while it is open. One is left for its units.
    const StagingBlock left = ring_.try_acquire();
    if (!left || !(tail = new_block(file, 0))) return std::nullopt;
  }
  ++next_to_open_;
  // Set under the lock, so that no other thread opens the file as well.
  file.stage = Stage::kOpening;
  return Task{Task::Kind::kOpen, &file, tail};
}

std::optional<WriteJob::Task> WriteJob::next_task_of(File& file) {
  if (file.stage != Stage::kOpen) return std::nullopt;
  if (file.next_unit < file.units) {
    Block* block = new_block(file, file.next_unit);
    // All staging memory is in use. A thread that has written a block wakes this one.
    if (!block) return std::nullopt;
    ++file.next_unit;
    ++file.in_progress;
    return Task{Task::Kind::kUnit, &file, block};
  }
  if (!file.tail) {
    file.tail = new_block(file, file.units);
    if (!file.tail) return std::nullopt;
    return Task{Task::Kind::kFillTail, &file, file.tail};
  }
  if (!file.tail_begun) {
    // The trailer contains the checksums of all blocks.
    if (!file.tail_filled || file.checksummed < file.units) return std::nullopt;
    file.tail_begun = true;
    return Task{Task::Kind::kTail, &file, file.tail};
  }
  if (file.tail_written && file.in_progress == 0) {
    file.stage = Stage::kClosing;
    return Task{Task::Kind::kClose, &file, nullptr};
  }
  return std::nullopt;
}

WriteJob::Block* WriteJob::new_block(File& file, std::uint64_t index) {
  StagingBlock memory = ring_.try_acquire();
  if (!memory) return nullptr;
  auto block = std::make_unique<Block>();
  block->file = &file;
  block->index = index;
  block->begin = std::min(index * ring_.block_bytes(), file.source->layout.tensors_end);
  block->end = std::min(block->begin + ring_.block_bytes(), file.source->layout.tensors_end);
  block->memory = std::move(memory);
  blocks_.push_back(std::move(block));
  return blocks_.back().get();
}

void WriteJob::drop(Block& block, bool is_unit) {
  MutexLock lock(mutex_);
  if (is_unit) --block.file->in_progress;
  blocks_.erase(std::find_if(blocks_.begin(), blocks_.end(), [&](const auto& other) { return other.get() == &block; }));
}

void WriteJob::perform(const Task& task) {
  const RunningWork work(work_);
  const ProfilerRange range(task.kind == Task::Kind::kDigest  ? "digest"
                            : task.kind == Task::Kind::kOpen  ? "open_file"
                            : task.kind == Task::Kind::kClose ? "close_file"
                                                              : "write_block");
  switch (task.kind) {
    case Task::Kind::kDigest:
      return digest(*task.block);
    case Task::Kind::kOpen:
      return open(*task.file, task.block);
    case Task::Kind::kUnit:
      return changes_.any() ? write_part(*task.block) : write_block(*task.block);
    case Task::Kind::kFillTail: {
      fill(*task.block);
      MutexLock lock(mutex_);
      task.file->tail_filled = true;
      return;
    }
    case Task::Kind::kTail:
      return write_tail(*task.block);
    case Task::Kind::kWrite:
      return finish_block(*task.block);
    case Task::Kind::kClose:
      return close(*task.file);
  }
}

void WriteJob::wait_for_turn(const Block& block) {
  MutexLock lock(mutex_);
  while (!failed() && block.file->turn != block.index) changed_.wait(mutex_);
  stop_if_failed();
}

void WriteJob::end_turn(const Block& block, bool checksummed) {
  {
    MutexLock lock(mutex_);
    block.file->turn = block.index + 1;
    block.file->checksummed += checksummed;
  }
  changed_.notify_all();
}

// Returns whether the file need not be written, because it is now a link to one of an earlier save.
bool WriteJob::take_over(File& file, Block* tail) {
  auto result =
      request_.reuse ? request_.reuse->take_over(*request_.store, *request_.plan, *file.source, request_.sync) : std::nullopt;
  if (!result) return false;
  if (tail) drop(*tail, false);
  file.result = *std::move(result);
  for (const PlacedTensor& tensor : file.source->layout.tensors) held(tensor.item);
  for (const std::uint32_t item : file.source->layout.unsized_items) held(item);
  MutexLock lock(mutex_);
  units_to_copy_ -= file.units;
  file.stage = Stage::kClosed;
  ++closed_;
  return true;
}

void WriteJob::open(File& file, Block* tail) {
  if (take_over(file, tail)) return;
  CreateOptions options;
  // How long a file of changed items becomes is not known.
  if (!changes_.any()) options.expected_bytes = expected_bytes(*request_.plan, file.source->layout);
  options.direct = request_.direct;
  options.part_bytes = ring_.block_bytes();
  // Programs read such a file by its name, without a commit record.
  options.appears_whole = ends_with(file.source->name, kSafetensorsEnd);
  file.writer = request_.store->create(file.source->name, options);
  require_alignment(*file.writer, *request_.store);
  file.result.name = file.source->name;
  place_items(file);
  if (tail) append_to(file, *tail);

  MutexLock lock(mutex_);
  file.tail = tail;
  file.tail_filled = tail != nullptr;
  file.stage = Stage::kOpen;
}

void WriteJob::place_items(File& file) {
  const FileLayout& layout = file.source->layout;
  if (changes_.any()) {
    for (const std::uint32_t index : layout.unsized_items) {
      if (request_.plan->items[index].type == WriteItemType::kByteIO) continue;
      const std::uint64_t payload_bytes = request_.plan->items[index].payload_bytes();
      Item& item = file.items.emplace_back();
      item.item = index;
      item.data = held(index);
      item.first_unit = file.units;
      // An empty tensor has a unit, too.
      item.units_left = static_cast<std::size_t>(std::max<std::uint64_t>(1, (payload_bytes + frame_bytes_ - 1) / frame_bytes_));
      item.in_one_unit = item.units_left == 1;
      file.units += item.units_left;
    }
    return;
  }
  const std::uint64_t block_bytes = ring_.block_bytes();
  file.block_crc32.resize(file.units * (block_bytes / kChecksumBlockBytes));
  file.staged_crc32.resize(file.units);
  file.items.resize(layout.tensors.size());
  for (std::size_t i = 0; i < file.items.size(); ++i) {
    const PlacedTensor& placed = layout.tensors[i];
    file.items[i].item = placed.item;
    file.items[i].data = held(placed.item);
    file.items[i].placed = &placed;
    file.items[i].in_one_unit = true;
    if (placed.layout.payload_bytes == 0) continue;
    file.items[i].first_unit = placed.payload_offset() / block_bytes;
    file.items[i].units_left = static_cast<std::size_t>((placed.payload_end() - 1) / block_bytes - file.items[i].first_unit + 1);
    file.items[i].in_one_unit = file.items[i].units_left == 1;
  }
}

void WriteJob::close(File& file) {
  file.writer->finish(file.result.length_bytes, request_.sync);
  file.items = {};
  file.block_crc32 = {};
  file.staged_crc32 = {};
  MutexLock lock(mutex_);
  file.stage = Stage::kClosed;
  ++closed_;
}

void WriteJob::finish() noexcept {
  std::exception_ptr failure = error();
  std::vector<FileResult> results;
  {
    MutexLock lock(mutex_);
    blocks_.clear();
    copied_first_.clear();
    idle_.clear();
  }
  if (failure) {
    for (File& file : files_)
      // Removes finished files as well: without a commit record nobody reads them.
      if (file.writer) file.writer->discard();
  } else {
    try {
      for (File& file : files_) results.push_back(std::move(file.result));
      if (request_.reuse) request_.reuse->keep(*request_.plan, request_.files, results);
    } catch (...) {
      failure = std::current_exception();
    }
  }
  files_.clear();
  to_digest_.clear();
  set_ended(failure, std::move(results));
}

}  // namespace cairn
