#include <cairn/storage/engine/read_job.hpp>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include <cairn/base/digest.hpp>
#include <cairn/base/error.hpp>
#include <cairn/base/log.hpp>
#include <cairn/base/parallel.hpp>
#include <cairn/base/profiler_range.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/publication.hpp>

namespace cairn {

ReadJob::ReadJob(ReadRequest request, std::shared_ptr<StagingRing> ring)
    : Job("reading on rank " + std::to_string(request.rank)),
      request_(std::move(request)),
      shared_ring_(std::move(ring)),
      ring_(*shared_ring_),
      work_(RunningWork::of_this_thread()) {
  items_.resize(request_.plan->items.size());
  file_by_index_.resize(request_.metadata->files.size());
  for (std::uint32_t index = 0; index < items_.size(); ++index) add_item(index);
}

void ReadJob::run(unsigned threads) noexcept {
  try {
    run_stage(kOpen, threads);
    make_tasks();
    if (request_.verify_first) run_stage(kVerify, threads);
    start_receivers();
    run_stage(kRead, threads);
  } catch (...) {
    fail(std::current_exception());
  }
  finish();
}

void ReadJob::run_stage(Stage stage, unsigned threads) {
  // As many tasks at once as there are staging blocks, so that no task has to wait for one.
  const auto at_once = static_cast<unsigned>(std::min<std::size_t>(threads, ring_.blocks_max()));
  for_each_in_parallel(at_once, stage == kOpen ? files_.size() : tasks_.size(), [&](std::size_t index) {
    try {
      stop_if_failed();
      run_task(stage, index);
    } catch (...) {
      fail(std::current_exception());  // at once, because other tasks may wait for this one
      throw;
    }
  });
}

void ReadJob::start_receivers() {
  receivers_.reserve(received_.size());  // a thread that has started must not be lost
  for (auto& [reader, tasks] : received_) {
    try {
      receivers_.push_back(start_thread("cairn-receive", [this, from = reader, mine = &tasks] { receive_all(from, *mine); }));
    } catch (const std::system_error& error) {
      request_.streams->decline(reader, std::string("cannot start a thread: ") + error.what());
      std::move(tasks.begin(), tasks.end(), std::back_inserter(tasks_));
    }
  }
}

void ReadJob::fail(std::exception_ptr error) noexcept {
  Job::fail(std::move(error));
  if (request_.streams) request_.streams->stop();  // threads may wait for other ranks
}

void ReadJob::run_task(Stage stage, std::size_t index) {
  const RunningWork work(work_);
  const ProfilerRange range(stage == kOpen ? "open_file" : stage == kVerify ? "verify_block" : "read_block");
  const auto entered = request_.destination->enter_thread();
  if (stage == kOpen) return open(*files_[index]);
  Task& task = tasks_[index];
  const bool verify_only = stage == kVerify;
  if (task.wrapped) {
    read_wrapped(task, verify_only);
  } else if (task.file) {
    read_ranges(task, verify_only);
  } else if (!verify_only) {
    for (const std::uint32_t item : task.items) {
      resolve(items_[item]);
      release(items_[item]);
    }
  }
}

void ReadJob::open(File& file) {
  try {
    file.opened = request_.opened->find(index_of(file));
    std::shared_ptr<Store> store = request_.store;
    for (int tries = 1; !file.opened; ++tries) {
      try {
        file.opened = look_at(store, *file.info);
        request_.opened->add(index_of(file), file.opened);
      } catch (const Error& error) {
        if (tries == 3 || error.code() != ErrorCode::kCorrupt) throw;
        if (tries == 2) store = fallback_of(file, error.what());  // only damage is there a second time
        if (!store) throw;
      }
    }
  } catch (const Error&) {
    // Names an item in the error, because a user knows tensors rather than files.
    for (const Item& item : items_)
      if (item.storage && file_by_index_[item.storage->file] == &file) rethrow_for(item);
    throw;
  }
}

std::shared_ptr<Store> ReadJob::fallback_of(File& file, const char* why) {
  std::shared_ptr<Store> other = request_.store->fallback();
  if (!other || !other->exists(file.info->name)) return nullptr;
  if (!file.has_warned.exchange(true))
    write_log(LogLevel::kWarning, request_.rank, child_url(other->url(), file.info->name) + " is read instead: " + why);
  return other;
}

bool ReadJob::read_again(File& file, std::uint64_t offset, MutableByteSpan block) {
  const auto is_sound_in = [&](Store& store) {
    store.read(file.info->name, {{offset, block}});
    return crc32(0, block) == file.opened->block_crc32[static_cast<std::size_t>(offset / file.grid_bytes())];
  };
  if (is_sound_in(*file.opened->store)) return true;
  if (file.opened->store != request_.store) return false;
  const auto other = fallback_of(file, "the other copy does not match its checksum");
  return other && is_sound_in(*other);
}

std::shared_ptr<const DataFile> ReadJob::look_at(const std::shared_ptr<Store>& store, const FileInfo& info) {
  auto file = std::make_shared<DataFile>();
  file->store = store;
  // PyTorch's files have no trailer. Safetensors files have checksums only in the commit record.
  const bool has_trailer = (request_.metadata->commit || info.trailer_length) && info.trailer_length != 0u;
  // Without checks the checksums are not needed, which saves a read per file.
  const bool is_checked = has_trailer && (request_.verify || request_.verify_first);
  if (!is_checked) file->content_bytes = check_file_length(*store, info);
  if (!has_trailer) return file;
  if (!info.length || !info.crc32 || !info.trailer_length)  // decoding refuses such a record; a caller may have made this one
    throw Error(ErrorCode::kCorrupt, "the metadata do not give its length, checksum and trailer length");
  if (*info.trailer_length > *info.length)
    throw Error(ErrorCode::kCorrupt, "the commit record gives it a trailer that is longer than the file");
  file->content_bytes = *info.length - *info.trailer_length;
  if (!is_checked) return file;
  *file = {read_trailer(*store, info), store};
  // Metadata that joins the parts of several ranks names no save. Then the file's name does.
  std::string expected = info.written_by.empty() ? request_.metadata->save_id : info.written_by;
  if (expected.empty()) expected = save_id_of_file(info.name.substr(info.name.rfind('/') + 1)).value_or("");
  if (file->save_id != expected)
    throw Error(ErrorCode::kCorrupt, "it belongs to save " + file->save_id + ", not to save " + expected);
  if (file->checksum_block_bytes > ring_.block_bytes())
    throw Error(ErrorCode::kUnsupported, "its checksum blocks of " + std::to_string(file->checksum_block_bytes) +
                                             " bytes do not fit into a staging block of " + std::to_string(ring_.block_bytes()) +
                                             ": raise bytes_in_flight_max");
  return file;
}

void ReadJob::read_ranges(Task& task, bool verify_only) {
  if (verify_only && !task.file->is_checked()) return;
  const StagingBlock staging = staging_block();
  if (!verify_only)
    // Before the read, so that the store can read directly into the destinations.
    for (const std::uint32_t span : task.spans)
      if (!resolve(items_[task.file->spans[span].item])->is_on_host()) staging.lock();
  const std::vector<Range> ranges = place(task, staging, verify_only);
  const bool has_come = !verify_only && task.is_received() && receive(task, ranges);
  std::vector<ReadRange> reads;
  reads.reserve(ranges.size());
  for (const Range& range : ranges)
    if (!range.kept && !has_come) reads.push_back({range.begin, {range.memory, static_cast<std::size_t>(range.end - range.begin)}});
  try {
    if (!reads.empty()) task.file->opened->store->read(task.file->info->name, reads);
  } catch (const Error&) {
    rethrow_for(item_at(task, reads.front().offset));
  }
  for (const Range& range : ranges) {
    stop_if_failed();
    // A kept block was checked when it was read first, and a received one by its reader.
    if (!task.file->is_checked() || range.kept || has_come) continue;
    check(task, range);
    if (request_.keep_blocks && !range.direct) keep_end(*task.file, range);
  }
  if (verify_only) return;
  if (task.shared && !task.is_received()) pass_on(task, ranges);
  for (const Range& range : ranges)
    if (!range.direct) copy(task, range);
  for (const std::uint32_t span : task.spans) release(items_[task.file->spans[span].item]);
}

// Keeps the last block of a range: that is where the next tensor of the file is.
void ReadJob::keep_end(const File& file, const Range& range) {
  const std::uint64_t block = (range.end - 1) / file.grid_bytes();
  const std::uint64_t begin = std::max(range.begin, block * file.grid_bytes());
  request_.opened->keep(index_of(file), block, {range.memory + (begin - range.begin), static_cast<std::size_t>(range.end - begin)});
}

// Reads a checksum block directly into a dense destination that needs the whole block. All other
// blocks go through the staging block, unless an earlier read has kept them.
std::vector<ReadJob::Range> ReadJob::place(const Task& task, const StagingBlock& staging, bool verify_only) {
  const std::vector<Span>& spans = task.file->spans;
  const std::uint64_t grid = task.file->grid_bytes();
  std::vector<Range> ranges;
  char* free = staging.data();
  std::size_t first = 0;
  for (const Piece& piece : task.pieces) {
    for (std::uint64_t at = piece.begin; at < piece.end;) {
      const std::uint64_t end = std::min(piece.end, (at / grid + 1) * grid);
      const Span* only = nullptr;
      std::size_t count = 0;
      // Spans that end before `at` are never needed again: blocks ascend.
      while (first < task.spans.size() && spans[task.spans[first]].range.end <= at) ++first;
      // Two are enough to know that the block is shared.
      for (std::size_t i = first; !verify_only && count < 2 && i < task.spans.size(); ++i) {
        const Span& span = spans[task.spans[i]];
        if (span.range.begin >= end) break;
        if (span.range.end <= at) continue;
        only = &span;
        ++count;
      }
      Range range{at, end, free, false, nullptr};
      if (count == 1 && only->range.dense && only->range.begin <= at && only->range.end >= end) {
        std::shared_ptr<Destination> destination;
        {
          MutexLock lock(mutex_);
          destination = items_[only->item].destination;
        }
        if (char* memory = destination->direct()) {
          range.memory = memory + only->range.first + (at - only->range.begin);
          range.direct = true;
        }
      }
      if (!range.direct && task.file->is_checked() && !task.is_received())
        range.kept = request_.opened->kept(index_of(*task.file), at / grid);
      if (range.kept)
        range.memory = const_cast<char*>(range.kept->data());  // is only read from
      else if (!range.direct)
        free += end - at;
      // Joins neighbours in file and memory, so that the store gets few large reads.
      Range* last = ranges.empty() ? nullptr : &ranges.back();
      if (last && !last->kept && !range.kept && last->end == at && last->direct == range.direct &&
          last->memory + (last->end - last->begin) == range.memory)
        last->end = end;
      else
        ranges.push_back(range);
      at = end;
    }
  }
  return ranges;
}

void ReadJob::check(const Task& task, const Range& range) {
  File& file = *task.file;
  const ByteSpan bytes(range.memory, static_cast<std::size_t>(range.end - range.begin));
  check_blocks(file.opened->block_crc32, file.grid_bytes(), range.begin, bytes, [&](std::uint64_t at, ByteSpan block) {
    if (read_again(file, at, {range.memory + (at - range.begin), block.size()})) return;
    const Item& item = item_at(task, at);
    throw Error(ErrorCode::kCorrupt, "rank " + std::to_string(request_.rank) + " cannot load \"" + name_of(item) +
                                         "\": " + url_of(*item.storage) + " is damaged between offsets " + std::to_string(at) +
                                         " and " + std::to_string(at + block.size()) +
                                         " (the checksum does not match). Load another checkpoint");
  });
}

void ReadJob::copy(const Task& task, const Range& range) {
  for (const std::uint32_t index : task.spans) {
    const Span& span = task.file->spans[index];
    if (span.range.begin >= range.end) break;
    if (span.range.end <= range.begin) continue;
    Item& item = items_[span.item];
    const std::shared_ptr<Destination> destination = resolve(item);
    item.region.visit(std::max(range.begin, span.range.begin), std::min(range.end, span.range.end),
                      [&](std::uint64_t offset, std::uint64_t position, std::uint64_t length) {
                        destination->write(position, {range.memory + (offset - range.begin), static_cast<std::size_t>(length)});
                      });
    stop_if_failed();
  }
}

void ReadJob::Destination::write(std::uint64_t position, ByteSpan from) {
  if (elements)
    elements->write(position, from);
  else
    std::memcpy(bytes.data() + position, from.data(), from.size());
}

std::shared_ptr<ReadJob::Destination> ReadJob::resolve(Item& item) {
  if (item.in_one_task) {
    if (!item.destination) item.destination = make_destination(item);
    return item.destination;
  }
  {
    MutexLock lock(mutex_);
    while (!failed() && item.resolving) changed_.wait(mutex_);
    stop_if_failed();
    if (item.destination) return item.destination;
    // Other threads wait instead of calling the planner for the same item twice. The planner is
    // called without the lock, because it is user code.
    item.resolving = true;
  }
  auto destination = make_destination(item);
  {
    MutexLock lock(mutex_);
    item.resolving = false;
    item.destination = destination;
  }
  changed_.notify_all();
  return destination;
}

std::shared_ptr<ReadJob::Destination> ReadJob::make_destination(const Item& item) {
  auto destination = std::make_shared<Destination>();
  if (item.wrapped || item.item->type == LoadItemType::kByteIO) {
    destination->bytes.resize(item.storage->length);
  } else {
    destination->elements = request_.destination->elements_for(*item.item, item.tensor->properties.dtype);
  }
  return destination;
}

void ReadJob::release(Item& item) {
  std::shared_ptr<Destination> filled;
  std::shared_ptr<Task> wrapped;
  if (item.in_one_task) {
    check_invariant(item.missing == 1, "an item was filled more often than planned");
    item.missing = 0;
    filled = std::move(item.destination);
  } else {
    MutexLock lock(mutex_);
    check_invariant(item.missing > 0, "an item was filled more often than planned");
    if (--item.missing > 0) return;
    // The last part is there. Whoever fills it commits the item, and nobody else touches it any
    // more.
    filled = std::move(item.destination);
    wrapped = std::move(item.wrapped);
    if (wrapped) item.missing = 1;  // its own part of the stored bytes
  }
  if (wrapped) return read_wrapped(*wrapped, false, filled->bytes);
  if (item.item->type != LoadItemType::kByteIO) return request_.destination->commit(*item.item, *filled->elements);
  try {
    request_.destination->take_bytes(*item.item, std::move(filled->bytes));
  } catch (const Error& error) {
    // The planner does not know where bytes that it cannot decode came from, so file and offset are
    // added here.
    if (error.code() != ErrorCode::kCorrupt && error.code() != ErrorCode::kUnsupported) throw;
    rethrow_for(item);
  }
}

StagingBlock ReadJob::staging_block() {
  StagingBlock block = ring_.try_acquire();
  if (!block && more_staging_) block = more_staging_->try_acquire();
  check_invariant(static_cast<bool>(block), "there must be a staging block for every task that runs");
  return block;
}

std::string ReadJob::url_of(const StorageInfo& storage) const {
  return child_url(request_.store->url(), request_.metadata->files[storage.file].name);
}

const ReadJob::Item& ReadJob::item_at(const Task& task, std::uint64_t offset) const {
  const std::uint64_t end = offset + task.file->grid_bytes();
  for (const std::uint32_t index : task.spans) {
    const Region::Span& range = task.file->spans[index].range;
    if (range.begin < end && range.end > offset) return items_[task.file->spans[index].item];
  }
  return items_[task.file->spans[task.spans.front()].item];
}

void ReadJob::rethrow_for(const Item& item) const {
  try {
    throw;
  } catch (const InternalError&) {
    throw;
  } catch (const Error& error) {
    throw Error(error.code(), "rank " + std::to_string(request_.rank) + " cannot read \"" + name_of(item) + "\" at offset " +
                                  std::to_string(item.storage->offset) + " of " + url_of(*item.storage) + ": " + error.what());
  }
}

// The error may be the result of another save replacing the checkpoint during the read. In that
// case returns kChanged.
std::exception_ptr ReadJob::explain(std::exception_ptr error) const noexcept {
  try {
    try {
      std::rethrow_exception(error);
    } catch (const Error& caught) {
      if (caught.code() != ErrorCode::kNotFound && caught.code() != ErrorCode::kCorrupt) return error;
      const auto now = published_metadata(*request_.store);
      const std::string& id = request_.metadata->save_id;
      // The checkpoint is still there, so the error is what it says.
      if (now && now->save_id == id) return error;
      // Files without a record, such as safetensors files of another program.
      if (!now && id.empty()) return error;
      return std::make_exception_ptr(
          Error(ErrorCode::kChanged, "the checkpoint at " + request_.store->url() + (now ? " was replaced" : " was removed") +
                                         " while rank " + std::to_string(request_.rank) + " read it" +
                                         (now ? " (save " + id + " gave way to " + now->save_id + "): load again" : std::string()) +
                                         ". " + caught.what()));
    }
  } catch (...) {
    return error;
  }
}

void ReadJob::finish() noexcept {
  if (request_.streams) {
    // In this order, because every rank's receivers wait for the end of what others send. After a
    // failure neither waits.
    if (!error()) request_.streams->finish_sending();
    for (std::thread& receiver : receivers_) receiver.join();
    request_.streams->report();
  }
  std::exception_ptr failure = error();
  if (failure) failure = explain(failure);
  // Before the future is ready: its owner may then free the plan and the tensors.
  items_.clear();
  tasks_.clear();
  files_.clear();
  set_ended(failure, true);
}

}  // namespace cairn
