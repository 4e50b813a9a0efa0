// Reads every byte of a checkpoint and compares it with everything known about it.
//
//   the record          decoding checks its checksum and its consistency
//   Cairn's data files  the length; the trailer; each block against the trailer; all bytes against
//                       the record's checksum; the items, which fill each file
//   PyTorch's files     each archive: its directory and the checksum of every entry, also for bytes
//                       objects that are archives
//   compressed items    the same, after decompression, in Cairn's files too
#include <cairn/storage/verify_checkpoint.hpp>

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include <cairn/base/digest.hpp>
#include <cairn/base/error.hpp>
#include <cairn/base/mutex.hpp>
#include <cairn/base/parallel.hpp>
#include <cairn/formats/torch_archive.hpp>
#include <cairn/formats/zip_format.hpp>
#include <cairn/planning/global_plan.hpp>
#include <cairn/planning/stored_items.hpp>
#include <cairn/storage/engine/data_file.hpp>
#include <cairn/storage/format/commit_record.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/format/trailer.hpp>
#include <cairn/storage/format/zstd_item.hpp>
#include <cairn/storage/read_metadata.hpp>

namespace cairn {
namespace {

constexpr std::uint64_t kPieceBytes = 4u << 20;  // unit of one read, per thread
static_assert(kPieceBytes % kChecksumBlockBytesMax == 0, "no checksum block is split between two pieces");

// An item that the record places in a file.
struct RecordedItem {
  std::string fqn;
  const StorageInfo* storage = nullptr;
  const TensorStorageMetadata* tensor = nullptr;  // nullptr: a bytes object
  const Box* chunk = nullptr;
};

struct File {
  const FileInfo* info = nullptr;
  std::vector<RecordedItem> items;  // sorted by offset
  std::uint64_t length = 0;         // actual length
  bool readable = true;             // false after a fault that makes reading the file pointless
  std::optional<Trailer> trailer;
  std::vector<std::uint32_t> piece_crc32;  // one per kPieceBytes of the file
};

// One unit of work: a piece of one of Cairn's files, or an item that is compressed or in one of
// PyTorch's files.
struct Task {
  File* file = nullptr;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  const RecordedItem* item = nullptr;
};

class Verification {
 public:
  Verification(Store& store, unsigned threads, const std::function<void(std::uint64_t, std::uint64_t)>& progress)
      : store_(store), threads_(std::max(1u, threads)), progress_(progress) {}

  std::vector<VerifyFault> run() {
    if (!read_record()) return take_faults();
    const bool ours = metadata_.commit.has_value();
    for_each_in_parallel(threads_, files_.size(), [&](std::size_t i) { open(files_[i], ours); });
    make_tasks(ours);
    // Tells the total before the first bytes are read.
    report(0);
    for_each_in_parallel(threads_, tasks_.size(), [&](std::size_t i) {
      const Task& task = tasks_[i];
      task.item ? check_archive(task) : check_piece(task);
      report(task.end - task.begin);
    });
    if (ours)
      for (File& file : files_) check_whole(file);
    return take_faults();
  }

 private:
  void add(const ObjectName& object, std::uint64_t offset, const std::string& fqn, const std::string& what,
           bool unchecked = false) {
    MutexLock lock(mutex_);
    faults_.push_back({object, offset, fqn, what, unchecked});
  }
  bool has_fault(const ObjectName& object) {
    MutexLock lock(mutex_);
    return std::any_of(faults_.begin(), faults_.end(),
                       [&](const VerifyFault& fault) { return fault.object == object && !fault.unchecked; });
  }
  std::vector<VerifyFault> take_faults() {
    MutexLock lock(mutex_);
    // Threads find faults in any order. Sorted, two runs report the same.
    std::sort(faults_.begin(), faults_.end(), [](const VerifyFault& a, const VerifyFault& b) {
      return std::tie(a.unchecked, a.object, a.offset, a.fqn, a.what) < std::tie(b.unchecked, b.object, b.offset, b.fqn, b.what);
    });
    return std::move(faults_);
  }
  // An unsupported feature is no damage, but nothing behind it was checked.
  void add(const ObjectName& object, std::uint64_t offset, const std::string& fqn, const Error& error) {
    add(object, offset, fqn, error.what(), error.code() == ErrorCode::kUnsupported);
  }

  // Calls `progress_`, one call at a time and in order. A lock of its own, since `progress_` may
  // take long.
  void report(std::uint64_t bytes) {
    if (!progress_) return;
    MutexLock lock(progress_mutex_);
    done_ += bytes;
    progress_(done_, total_);
  }

  // Returns whether the record could be read. A missing record throws: it is an error of the
  // caller, not a fault of a checkpoint.
  bool read_record() {
    try {
      metadata_ = read_metadata(store_);
      if (store_.fallback()) check_own_record();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kCorrupt && error.code() != ErrorCode::kUnsupported) throw;
      add(kCommitRecordName, 0, "", error);
      return false;
    }
    files_.resize(metadata_.files.size());
    for (std::size_t i = 0; i < files_.size(); ++i) files_[i].info = &metadata_.files[i];
    for (const auto& [fqn, entry] : metadata_.state_dict_metadata) {
      visit_stored(entry, [&, &fqn = fqn](const StorageInfo& storage, const TensorStorageMetadata* tensor, const Box* chunk) {
        files_[storage.file].items.push_back({fqn, &storage, tensor, chunk});
      });
      if (const auto* tensor = std::get_if<TensorStorageMetadata>(&entry)) check_parts(fqn, *tensor);
    }
    for (File& file : files_)
      std::sort(file.items.begin(), file.items.end(), [](const RecordedItem& a, const RecordedItem& b) {
        return std::tie(a.storage->offset, a.storage->length) < std::tie(b.storage->offset, b.storage->length);
      });
    return true;
  }

  // Readers use the second copy of a damaged record. Reads twice, because a record that is replaced
  // during a read looks damaged once.
  void check_own_record() {
    for (const bool is_last : {false, true}) {
      try {
        const auto record = store_.read_end(kCommitRecordName, kCommitRecordBytesMax);
        if (record) decode_commit_record(record->content, child_url(store_.url(), kCommitRecordName));
        return;
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kCorrupt) throw;
        if (is_last) add(kCommitRecordName, 0, "", error);
      }
    }
  }

  void check_parts(const std::string& fqn, const TensorStorageMetadata& tensor) {
    try {
      for (const CoverageFault& fault : check_coverage(fqn, tensor.size, tensor.chunks)) {
        // The parts of other ranks fill the gaps.
        if (fault.kind == CoverageFault::Kind::kGap && is_part(store_.url())) continue;
        add(kCommitRecordName, 0, fqn, "its chunks do not cover the tensor exactly: " + to_string(fault));
      }
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kInternal) throw;
      add(kCommitRecordName, 0, fqn, error);
    }
  }

  // Returns the name of the first item with a byte in [begin, end). Items of Cairn's files follow
  // one another, so their ends ascend too.
  static std::string name_at(const File& file, std::uint64_t begin, std::uint64_t end) {
    auto item = std::partition_point(file.items.begin(), file.items.end(), [&](const RecordedItem& other) {
      return other.storage->offset + other.storage->length <= begin;
    });
    return item != file.items.end() && item->storage->offset < end ? item->fqn : "";
  }

  void open(File& file, bool ours) {
    const FileInfo& info = *file.info;
    const std::string first = file.items.empty() ? "" : file.items.front().fqn;
    std::string fault;
    try {
      file.length = store_.size_bytes(info.name);
      fault = length_fault(store_, info, file.length);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kInternal) throw;
      file.readable = false;
      add(info.name, 0, first, error.code() == ErrorCode::kNotFound ? "the file is missing, or is no file" : error.what());
      return;
    }
    if (!fault.empty()) {
      const std::uint64_t written = info.length.value_or(0);  // PyTorch records none: all of the file is wrong
      const std::uint64_t from = std::min(file.length, written);
      add(info.name, from, info.length ? name_at(file, from, written) : first, fault);
      file.readable = false;
      return;
    }
    if (!ours) return;
    if (*info.trailer_length == 0) return;  // a safetensors file
    try {
      file.trailer = read_trailer(store_, info);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kInternal) throw;
      // If the trailer is damaged, the rest can still be checked. If it cannot be read, neither can
      // the rest.
      if (error.code() != ErrorCode::kCorrupt && error.code() != ErrorCode::kUnsupported) file.readable = false;
      add(info.name, file.length - *info.trailer_length, "", error);
    }
  }

  void make_tasks(bool ours) {
    for (File& file : files_) {
      if (!file.readable) continue;
      if (ours) {
        for (std::uint64_t begin = 0; begin < file.length; begin += kPieceBytes)
          tasks_.push_back({&file, begin, std::min(file.length, begin + kPieceBytes), nullptr});
        file.piece_crc32.resize(static_cast<std::size_t>((file.length + kPieceBytes - 1) / kPieceBytes));
        total_ += file.length;
      }
      const StorageInfo* last = nullptr;
      for (const RecordedItem& item : file.items) {
        if (ours && item.storage->transforms.empty()) continue;
        // Several items may share one archive, which is read once.
        if (last && last->offset == item.storage->offset && last->length == item.storage->length) continue;
        last = item.storage;
        tasks_.push_back({&file, item.storage->offset, item.storage->offset + item.storage->length, &item});
        total_ += item.storage->length;
      }
    }
  }

  // Consecutive damaged blocks of one item. They are one fault, because a whole file may be
  // damaged.
  struct DamagedRun {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;  // 0: none
    std::string fqn;
  };

  void add_run(const File& file, const DamagedRun& run) {
    if (run.end > 0)
      add(file.info->name, run.begin, run.fqn,
          "the checksum of the bytes up to offset " + std::to_string(run.end) + " does not match");
  }

  void check_piece(const Task& task) {
    File& file = *task.file;
    const auto length = static_cast<std::size_t>(task.end - task.begin);
    Bytes bytes(length, '\0');
    try {
      store_.read(file.info->name, {{task.begin, {bytes.data(), length}}});
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kInternal) throw;
      add(file.info->name, task.begin, name_at(file, task.begin, task.end), error.what());
      return;
    }
    // No lock: each task has an element of its own.
    file.piece_crc32[static_cast<std::size_t>(task.begin / kPieceBytes)] = crc32(0, bytes);
    if (file.trailer) {
      // The start of a piece is a multiple of every possible block size.
      const Trailer& trailer = *file.trailer;
      const ByteSpan content =
          ByteSpan(bytes).subspan(0, std::min(task.end, std::max(task.begin, trailer.content_bytes)) - task.begin);
      DamagedRun run;
      check_blocks(trailer.block_crc32, trailer.checksum_block_bytes, task.begin, content, [&](std::uint64_t at, ByteSpan block) {
        std::string fqn = name_at(file, at, at + block.size());
        if (run.end != at || run.fqn != fqn) {
          add_run(file, run);
          run = {at, at, std::move(fqn)};
        }
        run.end = at + block.size();
      });
      add_run(file, run);
    }
  }

  void check_whole(File& file) {
    if (!file.readable) return;
    const FileInfo& info = *file.info;
    std::uint32_t crc = 0;
    for (std::size_t piece = 0; piece < file.piece_crc32.size(); ++piece)
      crc = crc32_combine(crc, file.piece_crc32[piece], std::min(kPieceBytes, file.length - piece * kPieceBytes));
    // If the file already has a fault, a wrong checksum of the whole file adds nothing.
    if (crc != *info.crc32 && !has_fault(info.name))
      add(info.name, 0, "", "the checksum of the whole file does not match the commit record");
    if (file.trailer) check_items(file);
  }

  void check_items(const File& file) {
    const Trailer& trailer = *file.trailer;
    const auto fault = [&](std::uint64_t offset, const std::string& fqn, const std::string& what) {
      add(file.info->name, offset, fqn, what);
    };
    const std::string& writer = file.info->written_by.empty() ? metadata_.save_id : file.info->written_by;
    if (trailer.save_id != writer)
      fault(trailer.content_bytes, "", "the trailer names save " + trailer.save_id + ", the commit record " + writer);
    // A byte in a hole would belong to no item, and no tool could name what was damaged there.
    std::uint64_t end = 0;
    for (const RecordedItem& item : file.items) {
      const auto& [offset, length] = std::tie(item.storage->offset, item.storage->length);
      if (offset != end) fault(std::min(offset, end), item.fqn, "the commit record does not place it after the item before it");
      end = offset + length;
    }
    if (end != trailer.content_bytes) fault(end, "", "the items of the commit record do not fill the file");
  }

  void check_archive(const Task& task) {
    const RecordedItem& item = *task.item;
    const ObjectName& name = task.file->info->name;
    if (task.end < task.begin || task.end > task.file->length) {
      add(name, task.begin, item.fqn,
          "the metadata place it beyond the end of the file, which has " + std::to_string(task.file->length) + " bytes");
      return;
    }
    if (const std::string reason = why_not_undone(item.storage->transforms); !reason.empty()) {
      add(name, task.begin, item.fqn, reason, true);
      return;
    }
    const std::string what = child_url(store_.url(), name) + " at offset " + std::to_string(task.begin);
    try {
      const auto [size_bytes, read_at] = undo_transforms(
          *item.storage, item.tensor ? item.tensor->properties.dtype : DType::kUnknown, item.tensor ? &item.chunk->sizes : nullptr,
          [&](std::uint64_t offset, MutableByteSpan to) {
            store_.read(name, {{task.begin + offset, to}});
          },
          what);
      // Values that torch.save wrote are archives too. A blob of the user's own bytes carries no
      // checksum.
      if (item.tensor || looks_like_zip(size_bytes, read_at)) {
        const ZipReader zip(size_bytes, read_at, what);
        if (!zip.has_checksums()) add(name, task.begin, item.fqn, "its archive has no checksums", !is_cairns_file(name));
        for (const ZipReader::Entry& entry : zip.entries()) check_entry(task, zip, entry, read_at);
      }
      if (item.tensor) {
        const TorchArchive archive(size_bytes, read_at, what);
        const ArchivedTensor tensor = read_archived_tensor(archive);
        if (tensor.description.sizes != item.chunk->sizes || tensor.description.dtype != item.tensor->properties.dtype)
          add(name, task.begin, item.fqn, "it is a tensor of another size or dtype than the metadata say");
      }
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kInternal) throw;
      add(name, task.begin, item.fqn, error);
    }
  }

  // Looks at both ends, so that an archive damaged at one end is still recognised and checked.
  static bool looks_like_zip(std::uint64_t length, const ZipReader::ReadAt& read_at) {
    if (length < zip::kEndBytes) return false;
    char begin[4] = {};
    char end[4] = {};
    read_at(0, {begin, sizeof(begin)});
    read_at(length - zip::kEndBytes, {end, sizeof(end)});
    return zip::get_u32(begin) == zip::kLocalHeaderSignature || zip::get_u32(end) == zip::kEndSignature;
  }

  // Reads in pieces, because an entry may be larger than memory.
  void check_entry(const Task& task, const ZipReader& zip, const ZipReader::Entry& entry, const ZipReader::ReadAt& read_at) {
    const std::uint64_t begin = zip.data_offset(entry);
    std::uint32_t crc = 0;
    Bytes piece;
    for (std::uint64_t done = 0; done < entry.size_bytes; done += piece.size()) {
      piece.resize(static_cast<std::size_t>(std::min(kPieceBytes, entry.size_bytes - done)));
      read_at(begin + done, {piece.data(), piece.size()});
      crc = crc32(crc, piece);
    }
    if (entry.crc32 && crc != *entry.crc32)
      // Within a compressed item, no offset of the file is that of an entry.
      add(task.file->info->name, task.item->storage->transforms.empty() ? task.begin + begin : task.begin, task.item->fqn,
          "the checksum of the archive's entry " + entry.name + " does not match");
  }

  Store& store_;
  const unsigned threads_;
  const std::function<void(std::uint64_t, std::uint64_t)>& progress_;
  Metadata metadata_;
  std::vector<File> files_;
  std::vector<Task> tasks_;
  Mutex mutex_;
  std::vector<VerifyFault> faults_ CAIRN_GUARDED_BY(mutex_);
  Mutex progress_mutex_;
  std::uint64_t done_ CAIRN_GUARDED_BY(progress_mutex_) = 0;
  std::uint64_t total_ = 0;
};

}  // namespace

std::vector<VerifyFault> verify_checkpoint(Store& store, unsigned threads,
                                           const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
  return Verification(store, threads, progress).run();
}

}  // namespace cairn
