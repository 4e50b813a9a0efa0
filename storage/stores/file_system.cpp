#include <cairn/storage/stores/file_system.hpp>

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <system_error>

#include <cairn/base/error.hpp>

namespace cairn {
namespace {

constexpr int kAllocateTriesMax = 100;
// Limits memory. A process that uses more directories syncs some of them again.
constexpr std::size_t kDurableMax = 1000;

// Repeats a system call until no signal interrupts it. Returns its result, or -errno.
template <class Call>
auto retried(Call call) noexcept -> decltype(call()) {
  while (true) {
    const auto result = call();
    if (result >= 0) return result;
    if (errno != EINTR) return -errno;
  }
}

bool fits_offset(std::uint64_t value) noexcept { return value <= static_cast<std::uint64_t>(std::numeric_limits<off_t>::max()); }

FileKind kind_of_mode(mode_t mode) noexcept {
  if (S_ISREG(mode)) return FileKind::kRegular;
  if (S_ISDIR(mode)) return FileKind::kDirectory;
  if (S_ISLNK(mode)) return FileKind::kLink;
  return FileKind::kOther;
}

void fill(FileStatus& status, const struct stat& found) noexcept {
  status.kind = kind_of_mode(found.st_mode);
  status.size_bytes = static_cast<std::uint64_t>(found.st_size);
  status.device = static_cast<std::uint64_t>(found.st_dev);
  status.serial = static_cast<std::uint64_t>(found.st_ino);
}

class SystemFiles final : public FileSystem {
 public:
  int open_for_reading(const std::string& path) noexcept override {
    // O_NONBLOCK: opening a pipe of that name must not wait. It has no effect on regular files.
    return retried([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); });
  }

  int create_exclusively(const std::string& path) noexcept override {
    return retried([&] { return ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666); });
  }

  int close(int file) noexcept override {
    // Linux releases the descriptor even if close reports EINTR. A second close could hit a
    // descriptor that another thread has just opened.
    if (::close(file) == 0 || errno == EINTR) return 0;
    return -errno;
  }

  ssize_t read_at(int file, void* destination, std::size_t size, std::uint64_t offset) noexcept override {
    if (!fits_offset(offset)) return -EINVAL;
    return retried([&] { return ::pread(file, destination, size, static_cast<off_t>(offset)); });
  }

  ssize_t write_at(int file, const void* source, std::size_t size, std::uint64_t offset) noexcept override {
    if (!fits_offset(offset)) return -EFBIG;
    return retried([&] { return ::pwrite(file, source, size, static_cast<off_t>(offset)); });
  }

  int bypass_cache(int file, bool on) noexcept override {
    const int flags = ::fcntl(file, F_GETFL);
    if (flags < 0) return -errno;
    return ::fcntl(file, F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT) < 0 ? -errno : 0;
  }

  int allocate(int file, std::uint64_t length) noexcept override {
    if (!fits_offset(length)) return -EFBIG;
    // Not posix_fallocate, which writes to every block if the file system cannot reserve. An
    // interrupted reservation starts over, so under steady signals, as from a profiler, a large one
    // would never finish. The number of tries is therefore limited.
    for (int tries = 0; tries < kAllocateTriesMax; ++tries) {
      if (::fallocate(file, 0, 0, static_cast<off_t>(length)) == 0) return 0;
      if (errno != EINTR) return -errno;
    }
    return -EOPNOTSUPP;
  }

  int truncate(int file, std::uint64_t length) noexcept override {
    if (!fits_offset(length)) return -EFBIG;
    return retried([&] { return ::ftruncate(file, static_cast<off_t>(length)); });
  }

  int sync_data(int file) noexcept override {
    return retried([&] { return ::fdatasync(file); });
  }

  int status_of(int file, FileStatus& status) noexcept override {
    struct stat found;
    if (::fstat(file, &found) != 0) return -errno;
    fill(status, found);
    return 0;
  }

  int status(const std::string& path, bool follow, FileStatus& status) noexcept override {
    struct stat found;
    if (::fstatat(AT_FDCWD, path.c_str(), &found, follow ? 0 : AT_SYMLINK_NOFOLLOW) != 0) return -errno;
    fill(status, found);
    return 0;
  }

  int list_directory(const std::string& path, std::vector<DirectoryEntry>& entries) override {
    std::error_code error;
    for (std::filesystem::directory_iterator at(path, error), end; !error && at != end; at.increment(error)) {
      std::error_code gone;  // removed meanwhile
      FileKind kind = FileKind::kOther;
      // The directory itself has the kind on most file systems. In this order, as the rest follow
      // links.
      if (at->is_symlink(gone))
        kind = FileKind::kLink;
      else if (at->is_directory(gone))
        kind = FileKind::kDirectory;
      else if (at->is_regular_file(gone))
        kind = FileKind::kRegular;
      if (!gone) entries.push_back({at->path().filename().string(), kind});
    }
    return -error.value();
  }

  ObjectWrites writes(const std::string& path) noexcept override {
    struct statfs found;
    std::string existing = path;
    // A directory that does not exist yet will be on the file system of its parent.
    while (::statfs(existing.c_str(), &found) != 0) {
      const std::size_t slash = existing.rfind('/');
      if (errno != ENOENT || slash == 0 || slash == std::string::npos) return ObjectWrites::kParallel;
      existing.resize(slash);
    }
    const auto type = static_cast<std::uint32_t>(found.f_type);
    if (type == TMPFS_MAGIC || type == RAMFS_MAGIC) return ObjectWrites::kSerial;
    const bool is_local = type == BTRFS_SUPER_MAGIC || type == EXT4_SUPER_MAGIC || type == F2FS_SUPER_MAGIC ||
                          type == OVERLAYFS_SUPER_MAGIC || type == XFS_SUPER_MAGIC;
    // Others, among them those of networks: one file for each rank spares their servers.
    return is_local ? ObjectWrites::kSerialIfCached : ObjectWrites::kParallel;
  }

  int make_directory(const std::string& path) noexcept override { return ::mkdir(path.c_str(), 0777) == 0 ? 0 : -errno; }
  int remove_directory(const std::string& path) noexcept override { return ::rmdir(path.c_str()) == 0 ? 0 : -errno; }
  int remove_file(const std::string& path) noexcept override { return ::unlink(path.c_str()) == 0 ? 0 : -errno; }
  int rename(const std::string& from, const std::string& to) noexcept override {
    return ::rename(from.c_str(), to.c_str()) == 0 ? 0 : -errno;
  }
  int rename_exclusively(const std::string& from, const std::string& to) noexcept override {
    return ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0 ? 0 : -errno;
  }
  int link(const std::string& from, const std::string& to) noexcept override {
    return ::link(from.c_str(), to.c_str()) == 0 ? 0 : -errno;
  }

  int sync_directory(const std::string& path) noexcept override {
    const int directory = retried([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
    if (directory < 0) return directory;
    const int result = retried([&] { return ::fsync(directory); });
    ::close(directory);  // read-only handle: close has no error to report
    // Some file systems cannot sync directories. Nothing more can be done there.
    return result == -EINVAL || result == -EOPNOTSUPP ? 0 : result;
  }
};

}  // namespace

bool DurableDirectories::has(const std::string& path, const FileStatus& status) const {
  MutexLock lock(mutex_);
  const auto found = identities_.find(path);
  // Device and inode: a directory that was removed and made again under the same name has to be
  // synced again.
  return found != identities_.end() && found->second == std::pair(status.device, status.serial);
}

void DurableDirectories::add(const std::string& path, const FileStatus& status) {
  MutexLock lock(mutex_);
  if (identities_.size() >= kDurableMax) identities_.clear();
  identities_[path] = {status.device, status.serial};
}

void DurableDirectories::clear() {
  MutexLock lock(mutex_);
  identities_.clear();
}

void require(long result, std::string_view action, const std::string& path, bool (*is_fine)(int result)) {
  const int number = static_cast<int>(std::min(result, 0L));
  if (number < 0 && !(is_fine && is_fine(number))) throw system_error(action, path, -number);
}

FileSystem& system_files() {
  // Never destroyed: saves in flight still write while static objects are destroyed.
  static SystemFiles& files = *new SystemFiles;
  return files;
}

}  // namespace cairn
