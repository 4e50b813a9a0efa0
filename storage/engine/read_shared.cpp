// The part of ReadJob that shares what it reads with other ranks, which read the same checkpoint at
// the same time.
//
// The job's threads read and pass on. Each rank that sends to this one has a thread of its own
// here. Receiving therefore never waits for sending, and ranks cannot deadlock.
#include <algorithm>
#include <utility>

#include <cairn/base/profiler_range.hpp>
#include <cairn/storage/engine/read_job.hpp>
#include <cairn/storage/format/trailer.hpp>

namespace cairn {
namespace {

constexpr std::uint64_t kOffsetMax = std::uint64_t{1} << 62;  // a larger one is damage

}  // namespace

std::vector<FileRange> ReadJob::needs() const {
  std::vector<FileRange> ranges;
  const auto add = [&](const StorageInfo& storage, std::uint64_t begin, std::uint64_t end) {
    if (begin >= end || end > kOffsetMax) return;
    ranges.push_back({storage.file, begin / kChecksumBlockBytes * kChecksumBlockBytes,
                      (end + kChecksumBlockBytes - 1) / kChecksumBlockBytes * kChecksumBlockBytes});
  };
  for (const Item& item : items_) {
    const StorageInfo& storage = *item.storage;
    if (item.item->type == LoadItemType::kTensor && volume(item.item->lengths) == 0) continue;
    if (!item.is_wrapped())
      for (const Region::Span& span : item.region.spans(kGapBytesMax)) add(storage, span.begin, span.end);
    else if (storage.length <= kSharedItemBytesMax && storage.offset < kOffsetMax)
      add(storage, storage.offset, storage.offset + storage.length);
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const FileRange& a, const FileRange& b) { return std::pair(a.file, a.begin) < std::pair(b.file, b.begin); });
  std::size_t kept = 0;
  for (const FileRange& range : ranges) {
    FileRange* const last = kept > 0 ? &ranges[kept - 1] : nullptr;
    if (last && last->file == range.file && range.begin <= last->end)
      last->end = std::max(last->end, range.end);
    else
      ranges[kept++] = range;
  }
  ranges.resize(kept);
  return ranges;
}

// --- tasks ---------------------------------------------------------------------------------------

// Whether other ranks share any block of a wrapped item. They then count on this rank to take, or
// to read, all of its blocks.
bool ReadJob::is_shared(const StorageInfo& storage) const {
  if (!request_.shared || storage.length == 0 || storage.length > kSharedItemBytesMax) return false;
  const auto next = shared_after(storage.file, storage.offset);
  return next != request_.shared->ranges.end() && next->bytes.file == storage.file &&
         next->bytes.begin < storage.offset + storage.length;
}

std::vector<SharedRange>::const_iterator ReadJob::shared_after(std::uint32_t file, std::uint64_t offset) const {
  const auto& ranges = request_.shared->ranges;
  return std::partition_point(ranges.begin(), ranges.end(), [&](const SharedRange& range) {
    return std::pair(range.bytes.file, range.bytes.end) <= std::pair(file, offset);
  });
}

void ReadJob::sort_out_shared() {
  const auto own = std::stable_partition(tasks_.begin(), tasks_.end(), [](const Task& task) { return !task.is_received(); });
  // A thread for each reader, even for one whose bytes turn out to be beyond the file's end.
  for (const SharedRange& range : request_.shared->ranges)
    if (range.receivers.empty()) received_[range.reader];
  for (auto task = own; task != tasks_.end(); ++task) received_[task->shared->reader].push_back(std::move(*task));
  tasks_.erase(own, tasks_.end());
  // Others wait for these.
  const auto unshared =
      std::stable_partition(tasks_.begin(), tasks_.end(), [](const Task& task) { return task.shared != nullptr; });
  std::size_t turn = 0;
  for (auto task = tasks_.begin(); task != unshared; ++task) task->turn = turn++;
  // A task may hold a second block while it reads the tensors of a wrapped item.
  const std::size_t blocks = ring_.blocks_max() + 2 * received_.size();
  more_staging_ = std::make_unique<StagingRing>(blocks * ring_.block_bytes(), ring_.block_bytes());
}

// --- running them --------------------------------------------------------------------------------

void ReadJob::pass_on(const Task& task, const std::vector<Range>& ranges) {
  {
    MutexLock lock(mutex_);
    while (!failed() && turn_ != task.turn) changed_.wait(mutex_);
  }
  for (const Range& range : ranges) {
    stop_if_failed();
    for (const std::uint32_t to : task.shared->receivers)
      request_.streams->send(to, {range.memory, static_cast<std::size_t>(range.end - range.begin)});
  }
  {
    MutexLock lock(mutex_);
    ++turn_;
  }
  changed_.notify_all();
}

bool ReadJob::receive(const Task& task, const std::vector<Range>& ranges) {
  return std::all_of(ranges.begin(), ranges.end(), [&](const Range& range) {
    return request_.streams->receive(task.shared->reader, {range.memory, static_cast<std::size_t>(range.end - range.begin)});
  });
}

void ReadJob::receive_all(std::uint32_t reader, std::vector<Task>& tasks) noexcept {
  const RunningWork work(work_);
  try {
    const auto entered = request_.destination->enter_thread();
    for (Task& task : tasks) {
      stop_if_failed();
      const ProfilerRange range("receive_block");
      read_ranges(task, false);
    }
    request_.streams->finish_receiving(reader);
  } catch (const Stopped&) {
  } catch (const ReaderFailed&) {
    // The load ends with the failure of that rank, which alone knows it. Items that lack bytes are
    // never committed.
  } catch (...) {
    fail(std::current_exception());
  }
}

}  // namespace cairn
