// Writes one object of a file store.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <utility>

#include <cairn/base/error.hpp>
#include <cairn/base/shared_mutex.hpp>
#include <cairn/storage/stores/file_store.hpp>

namespace cairn {
namespace {

// The largest alignment that devices require for direct I/O: offsets, sizes and addresses must be
// multiples of it.
constexpr std::size_t kDirectAlignment = 4096;
// The kernel writes at most 2 GiB minus a page at once. This is below that and a multiple of the
// alignment.
constexpr std::size_t kWriteBytesMax = std::size_t{1} << 30;

std::string range_text(std::uint64_t offset, std::size_t size) {
  return std::to_string(size) + " bytes at " + std::to_string(offset);
}

// Many threads may write at once. `finish` and `discard` wait for running writes.
class FileWriter final : public ObjectWriter {
 public:
  FileWriter(FileSystem& files, std::string root, std::string path, const CreateOptions& options)
      : files_(files),
        root_(std::move(root)),
        final_path_(std::move(path)),
        path_(options.appears_whole ? final_path_ + ".part" : final_path_) {
    file_ = files_.create_exclusively(path_);
    require(file_, "create", path_);
    try {
      require(files_.status_of(file_, identity_), "inspect", path_);
      if (options.expected_bytes > 0) {
        // A full disk is found now, before anything is written. File systems without reservation
        // find it later.
        require(files_.allocate(file_, options.expected_bytes), "reserve " + std::to_string(options.expected_bytes) + " bytes for",
                path_, [](int result) { return result == -EOPNOTSUPP || result == -ENOSYS || result == -EINVAL; });
      }
      if (options.direct && files_.bypass_cache(file_, true) >= 0) {
        bypasses_cache_ = true;
        alignment_ = kDirectAlignment;
      }
    } catch (...) {
      files_.remove_file(path_);
      files_.close(file_);
      throw;
    }
  }

  ~FileWriter() override {
    if (state_ == State::kWriting) discard();
  }

  void write_at(std::uint64_t offset, ByteSpan bytes) override {
    // Shared: several threads write different parts. `finish` and `discard` wait for all of them.
    SharedLock lock(mutex_);
    require_writing("write to");
    if (offset % alignment_ != 0 || bytes.size() % alignment_ != 0 ||
        reinterpret_cast<std::uintptr_t>(bytes.data()) % alignment_ != 0)
      throw Error(ErrorCode::kInvalidArgument, "cannot write " + range_text(offset, bytes.size()) + " to " + path_ +
                                                   ": offset, size and address must be multiples of " + std::to_string(alignment_) +
                                                   ", because it was opened for direct I/O");
    while (!bytes.empty()) {
      const std::size_t asked = std::min(bytes.size(), kWriteBytesMax);
      // Read before the write, because another thread may be turning direct I/O off at this moment.
      const bool bypassing = bypasses_cache_.load(std::memory_order_acquire);
      ssize_t result = files_.write_at(file_, bytes.data(), asked, offset);
      if (bypassing) {
        // A file system may accept direct I/O and still refuse the write: fall back to the page
        // cache. After a partial write, the rest must start at an aligned offset again.
        if (result > 0 && static_cast<std::size_t>(result) < asked) result -= result % static_cast<ssize_t>(alignment_);
        if (result == -EINVAL || result == 0) {
          require(files_.bypass_cache(file_, false), "leave direct I/O on", path_);
          bypasses_cache_.store(false, std::memory_order_release);
          continue;
        }
      }
      // 0 is neither progress nor an error.
      require(result == 0 ? -EIO : result, "write " + range_text(offset, bytes.size()) + " to", path_);
      bytes = bytes.subspan(static_cast<std::size_t>(result), bytes.size() - static_cast<std::size_t>(result));
      offset += static_cast<std::uint64_t>(result);
    }
  }

  std::size_t alignment_bytes() const override { return alignment_; }
  void finish(std::uint64_t length, bool is_durable) override {
    ExclusiveLock lock(mutex_);
    require_writing(is_durable ? "sync" : "close");
    require(files_.truncate(file_, length), "cut to " + std::to_string(length) + " bytes", path_);
    // After a failed fsync the kernel may mark unwritten pages as clean, so a retry could succeed
    // without writing them. Only a new file is safe.
    if (is_durable) require(files_.sync_data(file_), "sync", path_);
    // After the sync and before the success is reported: a fence by another job may have removed
    // the file meanwhile.
    if (!names_this_file())
      throw Error(ErrorCode::kNotFound,
                  "cannot finish writing " + path_ + ": it was removed or replaced; another process may have ended its save");
    if (path_ != final_path_) take_name();
    const int closed = files_.close(file_);
    file_ = -1;
    require(closed, "close", path_);
    if (is_durable) sync_directories_up(files_, root_, path_);
    state_ = State::kFinished;
  }

  void discard() noexcept override {
    ExclusiveLock lock(mutex_);
    if (state_ == State::kDiscarded) return;
    state_ = State::kDiscarded;
    // Removes the name before closing: the open handle keeps the inode number from being reused.
    if (names_this_file()) files_.remove_file(path_);
    if (file_ >= 0) files_.close(file_);
    file_ = -1;
  }

 private:
  enum class State : std::uint8_t { kWriting, kFinished, kDiscarded };

  void require_writing(const char* action) const CAIRN_REQUIRES_SHARED(mutex_) {
    if (state_ == State::kWriting) return;
    throw Error(ErrorCode::kPrecondition, std::string("cannot ") + action + " " + path_ + ": its writer was already " +
                                              (state_ == State::kFinished ? "synced or closed" : "discarded"));
  }

  // Gives a complete file its final name.
  void take_name() CAIRN_REQUIRES(mutex_) {
    int result = files_.rename_exclusively(path_, final_path_);
    if (result == -EINVAL || result == -ENOSYS) {  // not every file system can
      result = files_.link(path_, final_path_);
      if (result >= 0) files_.remove_file(path_);
    }
    require(result, "give its name to", final_path_);
    path_ = final_path_;
  }

  // Returns whether the path still names this writer's file. If another file has its name now, this
  // writer must not remove or report that one.
  bool names_this_file() noexcept {
    FileStatus found;
    return files_.status(path_, false, found) == 0 && found.device == identity_.device && found.serial == identity_.serial;
  }

  FileSystem& files_;
  const std::string root_;
  const std::string final_path_;
  std::string path_;  // with `appears_whole`, a temporary name until the file is complete
  std::size_t alignment_ = 1;

  SharedMutex mutex_;  // shared while writing; exclusive to change the members below
  State state_ CAIRN_GUARDED_BY(mutex_) = State::kWriting;
  int file_ CAIRN_GUARDED_BY(mutex_) = -1;
  FileStatus identity_;
  std::atomic<bool> bypasses_cache_{false};
};

}  // namespace

// Syncs every directory from the file up to the root: any rank may have just created a parent.
void sync_directories_up(FileSystem& files, const std::string& root, const std::string& path) {
  std::string directory = path;
  while (directory.size() > root.size()) {
    const std::size_t slash = directory.rfind('/');
    if (slash == std::string::npos) break;
    directory.resize(std::max(slash, root.size()));
    require(files.sync_directory(directory), "sync directory", directory);
  }
}

std::unique_ptr<ObjectWriter> make_file_writer(FileSystem& files, const std::string& root, const std::string& path,
                                               const CreateOptions& options) {
  return std::make_unique<FileWriter>(files, root, path, options);
}

}  // namespace cairn
