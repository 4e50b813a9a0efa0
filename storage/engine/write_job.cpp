#include <cairn/storage/engine/write_job.hpp>

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include <cairn/base/error.hpp>
#include <cairn/state/profiler_range.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/format/safetensors.hpp>

namespace cairn {
namespace {

constexpr int kIoClassIdle = 3 << 13;  // IOPRIO_CLASS_IDLE; has no libc header
constexpr int kIoOfThread = 1;         // IOPRIO_WHO_PROCESS

}  // namespace

void lower_thread_priority() noexcept {
  // On Linux both calls apply to one thread, although their names say process.
  setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), 19);
  syscall(SYS_ioprio_set, kIoOfThread, 0, kIoClassIdle);
}

std::uint64_t expected_bytes(const SavePlan& plan, const FileLayout& layout) {
  std::uint64_t content = layout.tensors_end;
  // Compressed tensors are taken to be as long as their elements.
  for (const std::uint32_t item : layout.unsized_items) content += plan.items[item].payload_bytes();
  const std::uint64_t checksums = content / kChecksumBlockBytes * sizeof(std::uint32_t);
  constexpr std::uint64_t kTrailerItemBytes = 128;  // estimate, including its name
  return content + checksums + (layout.tensors.size() + layout.unsized_items.size() + 1) * kTrailerItemBytes;
}

void require_alignment(const ObjectWriter& writer, const Store& store) {
  const std::size_t bytes = writer.alignment_bytes();
  if (bytes == 0 || StagingRing::kAlignmentBytes % bytes != 0)
    throw Error(ErrorCode::kUnsupported, "the store at " + store.url() + " asks for writes aligned to " + std::to_string(bytes) +
                                             " bytes; at most " + std::to_string(StagingRing::kAlignmentBytes) +
                                             " is possible: turn direct_io off");
}

WriteJob::WriteJob(WriteRequest request, std::shared_ptr<StagingRing> ring, unsigned threads)
    : request_(std::move(request)),
      shared_ring_(std::move(ring)),
      ring_(*shared_ring_),
      // One more than threads: while the last blocks of a file are written, the next file can be
      // opened.
      files_open_max_(threads + 1),
      work_(RunningWork::of_this_thread()),
      streams_(CurrentStreams::capture()),
      files_(request_.files.size()) {
  for (std::size_t i = 0; i < files_.size(); ++i) files_[i].source = &request_.files[i];
}

WriteJob::~WriteJob() = default;

void WriteJob::cancel() noexcept {
  fail(std::make_exception_ptr(
      Error(ErrorCode::kCancelled, "writing rank " + std::to_string(request_.rank) + "'s files was cancelled")));
}

void WriteJob::fail(std::exception_ptr error) noexcept {
  {
    MutexLock lock(mutex_);
    if (!error_) error_ = std::move(error);
    failed_ = true;
  }
  changed_.notify_all();
}

void WriteJob::run() noexcept {
  if (request_.low_priority) lower_thread_priority();
  const CurrentStreams::Scope streams(streams_);
  while (true) {
    std::optional<Task> task;
    try {
      MutexLock lock(mutex_);
      changed_.wait(
          mutex_, [&]() CAIRN_REQUIRES(mutex_) { return failed_ || closed_ == files_.size() || (task = next_task()).has_value(); });
    } catch (...) {
      fail(std::current_exception());
    }
    if (!task || failed_) return;
    try {
      perform(*task);
    } catch (...) {
      fail(std::current_exception());
    }
    changed_.notify_all();
  }
}

// Earlier files come first, so that few files are open and each is closed
// early.
std::optional<WriteJob::Task> WriteJob::next_task() {
  if (!request_.copy_first)
    // Completing first frees staging blocks. With `copy_first`, copying comes first, because the
    // trainer waits for it.
    if (auto task = next_completable()) return task;
  while (first_open_ < files_.size() && files_[first_open_].stage == Stage::kClosed) ++first_open_;
  std::size_t open = 0;
  for (std::size_t i = first_open_; i < next_to_open_; ++i) {
    if (files_[i].stage == Stage::kClosed) continue;
    ++open;
    if (auto task = next_task_of(files_[i])) return task;
  }
  if (next_to_open_ < files_.size() && open < files_open_max_) {
    File& file = files_[next_to_open_++];
    // Set under the lock, so that no other thread opens the file as well.
    file.stage = Stage::kOpening;
    return Task{Task::Kind::kOpen, &file, nullptr};
  }
  return next_completable();
}

std::optional<WriteJob::Task> WriteJob::next_completable() {
  if (completable_.empty()) return std::nullopt;
  Block* block = completable_.front();
  completable_.pop_front();
  return Task{Task::Kind::kComplete, block->file, block};
}

// The stages of a file in order: fill its blocks, fill the tail, build the tail when all checksums
// are there, close.
std::optional<WriteJob::Task> WriteJob::next_task_of(File& file) {
  if (file.stage != Stage::kOpen) return std::nullopt;
  if (file.next_block < file.whole_blocks) {
    Block* block = new_block(file, file.next_block);
    // All staging memory is in use. A thread that completes a block wakes this one.
    if (!block) return std::nullopt;
    ++file.next_block;
    return Task{Task::Kind::kFill, &file, block};
  }
  if (!file.tail) {
    file.tail = new_block(file, file.whole_blocks);
    if (!file.tail) return std::nullopt;
    return Task{Task::Kind::kFillTail, &file, file.tail};
  }
  if (!file.tail_begun) {
    // The trailer contains the checksums of all blocks.
    if (!file.tail_filled || file.checksummed < file.whole_blocks) return std::nullopt;
    file.tail_begun = true;
    return Task{Task::Kind::kTail, &file, file.tail};
  }
  if (file.tail_written && file.written == file.whole_blocks) {
    file.stage = Stage::kClosing;
    return Task{Task::Kind::kClose, &file, nullptr};
  }
  return std::nullopt;
}

WriteJob::Block* WriteJob::new_block(File& file, std::uint64_t index) {
  char* memory = ring_.try_acquire();
  if (!memory) return nullptr;
  // Owns the memory from here on, also if the allocation below fails.
  StagingBlock staging(ring_, memory);
  auto block = std::make_unique<Block>();
  block->file = &file;
  block->index = index;
  block->begin = index * ring_.block_bytes();
  block->end = std::min(block->begin + ring_.block_bytes(), file.source->layout.tensors_end);
  block->memory = std::move(staging);
  blocks_.push_back(std::move(block));
  return blocks_.back().get();
}

void WriteJob::drop(Block& block) {
  MutexLock lock(mutex_);
  blocks_.erase(std::find_if(blocks_.begin(), blocks_.end(), [&](const auto& other) { return other.get() == &block; }));
}

void WriteJob::perform(const Task& task) {
  const RunningWork work(work_);
  const ProfilerRange range(task.kind == Task::Kind::kOpen    ? "open_file"
                            : task.kind == Task::Kind::kClose ? "close_file"
                                                              : "write_block");
  switch (task.kind) {
    case Task::Kind::kOpen:
      return open(*task.file);
    case Task::Kind::kFill:
      return fill_and_complete(*task.block);
    case Task::Kind::kComplete:
      return complete(*task.block);
    case Task::Kind::kFillTail:
      return fill_tail(*task.block);
    case Task::Kind::kTail:
      return write_tail(*task.block);
    case Task::Kind::kClose:
      return close(*task.file);
  }
}

void WriteJob::open(File& file) {
  const FileLayout& layout = file.source->layout;
  CreateOptions options;
  options.expected_bytes = expected_bytes(*request_.plan, layout);
  options.direct = request_.direct;
  options.part_bytes = ring_.block_bytes();
  // Programs read such a file by its name, without a commit record.
  options.appears_whole = ends_with(file.source->name, kSafetensorsEnd);
  auto writer = request_.store->create(file.source->name, options);

  const std::uint64_t block_bytes = ring_.block_bytes();
  std::vector<Item> items(layout.tensors.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    Item& item = items[i];
    item.placed = &layout.tensors[i];
    if (item.placed->layout.payload_bytes == 0) continue;
    item.first_block = item.placed->payload_offset() / block_bytes;
    // One part per staging block that the payload meets.
    item.parts_missing = static_cast<std::size_t>((item.placed->payload_end() - 1) / block_bytes - item.first_block + 1);
    item.part_crc32.resize(item.parts_missing);
  }
  file.writer = std::move(writer);  // from here on it is discarded if anything fails
  require_alignment(*file.writer, *request_.store);

  MutexLock lock(mutex_);
  file.items = std::move(items);
  file.whole_blocks = layout.tensors_end / block_bytes;
  file.block_crc32.resize(file.whole_blocks * (block_bytes / kChecksumBlockBytes));
  file.staged_crc32.resize(file.whole_blocks);
  file.result.name = file.source->name;
  file.stage = Stage::kOpen;
}

void WriteJob::close(File& file) {
  if (request_.sync)
    file.writer->sync(file.result.length_bytes);
  else
    file.writer->close(file.result.length_bytes);
  MutexLock lock(mutex_);
  file.items = {};
  file.block_crc32 = {};
  file.staged_crc32 = {};
  file.stage = Stage::kClosed;
  ++closed_;
}

void WriteJob::finish() noexcept {
  std::exception_ptr error;
  std::vector<FileResult> results;
  std::vector<File> files;
  std::vector<std::unique_ptr<Block>> blocks;
  {
    MutexLock lock(mutex_);
    error = error_;
    files.swap(files_);
    blocks.swap(blocks_);
    completable_.clear();
  }
  // First, because blocks refer to files.
  blocks.clear();
  if (error) {
    for (File& file : files)
      // Removes finished files as well: without a commit record nobody reads them.
      if (file.writer) file.writer->discard();
  } else {
    try {
      for (File& file : files) results.push_back(std::move(file.result));
    } catch (...) {
      error = std::current_exception();
    }
  }
  files.clear();
  set_ended(error, std::move(results));
}

}  // namespace cairn
