// The system calls of the file store. Tests replace this interface with a file system that fails or
// loses power.
//
// Each operation is one action of the kernel, so that a test can place a crash between any two.
// Results are those of the kernel: 0 or more on success, -errno on failure; nothing throws. An
// operation that a signal interrupts is retried here. Callers handle short reads and writes.
// Paths are absolute. Thread-safe.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <cairn/base/mutex.hpp>
#include <cairn/storage/store.hpp>

namespace cairn {

enum class FileKind : std::uint8_t { kRegular = 1, kDirectory, kLink, kOther };

struct FileStatus {
  FileKind kind = FileKind::kOther;
  std::uint64_t size_bytes = 0;
  // Identity of the file (st_dev and st_ino): equal for two names of one file.
  std::uint64_t device = 0;
  std::uint64_t serial = 0;
};

struct DirectoryEntry {
  std::string name;
  FileKind kind = FileKind::kOther;  // the kind of the entry itself; links are not followed
};

// The directories whose name, and the names of all directories above them, this process has synced
// already. Thread-safe.
class DurableDirectories {
 public:
  // Returns whether this directory was added; another directory under the same path does not count.
  bool has(const std::string& path, const FileStatus& status) const;
  void add(const std::string& path, const FileStatus& status);
  void clear();

 private:
  mutable Mutex mutex_;
  std::map<std::string, std::pair<std::uint64_t, std::uint64_t>> identities_ CAIRN_GUARDED_BY(mutex_);  // device and serial
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // Filled by the file store, so that it syncs each directory once per process.
  DurableDirectories durable;

  // --- files: handles are small numbers; the caller that opened one must close it ---
  // Opens a file, and follows links. Never blocks, even if the path names a pipe or a device.
  virtual int open_for_reading(const std::string& path) noexcept = 0;
  // Opens for reading and writing. Returns -EEXIST if the name exists, even as a dangling link.
  virtual int create_exclusively(const std::string& path) noexcept = 0;
  // Closes the handle, even if the result reports that data could not be written back.
  virtual int close(int file) noexcept = 0;
  virtual ssize_t read_at(int file, void* destination, std::size_t size, std::uint64_t offset) noexcept = 0;
  virtual ssize_t write_at(int file, const void* source, std::size_t size, std::uint64_t offset) noexcept = 0;
  // Turns direct I/O on or off. Returns -EINVAL if the file system does not support it.
  virtual int bypass_cache(int file, bool on) noexcept = 0;
  // Reserves space for `length` bytes and extends the file to that length. Returns -EOPNOTSUPP if
  // the file system cannot do this.
  virtual int allocate(int file, std::uint64_t length) noexcept = 0;
  virtual int truncate(int file, std::uint64_t length) noexcept = 0;
  // Makes content and length survive power loss. The name survives only after `sync_directory`.
  virtual int sync_data(int file) noexcept = 0;
  virtual int status_of(int file, FileStatus& status) noexcept = 0;

  // Returns how fast the file system of `path` is when several threads write to one file. The
  // default is for those of tests.
  virtual ObjectWrites writes(const std::string& /*path*/) noexcept { return ObjectWrites::kParallel; }

  // --- names ---
  virtual int status(const std::string& path, bool follow, FileStatus& status) noexcept = 0;
  // Appends all entries except "." and "..", unsorted.
  virtual int list_directory(const std::string& path, std::vector<DirectoryEntry>& entries) = 0;
  virtual int make_directory(const std::string& path) noexcept = 0;
  virtual int remove_directory(const std::string& path) noexcept = 0;
  virtual int remove_file(const std::string& path) noexcept = 0;
  // Renames atomically. A file may replace a file, and a directory an empty directory.
  virtual int rename(const std::string& from, const std::string& to) noexcept = 0;
  // Renames atomically. Returns -EEXIST if `to` exists, -EINVAL or -ENOSYS if unsupported.
  virtual int rename_exclusively(const std::string& from, const std::string& to) noexcept = 0;
  // Adds a second name (hard link), atomically. Returns -EEXIST if `to` exists.
  virtual int link(const std::string& from, const std::string& to) noexcept = 0;
  // Makes the names in the directory survive power loss. Succeeds without effect if the file system
  // does not support this.
  virtual int sync_directory(const std::string& path) noexcept = 0;
};

// Throws the error of a failed operation, given its result, unless `is_fine` holds for the result.
void require(long result, std::string_view action, const std::string& path, bool (*is_fine)(int result) = nullptr);

// Returns the machine's file system. It is never destroyed.
FileSystem& system_files();

}  // namespace cairn
