// The system calls that the file store makes, and no others: the seam where tests put a file system that fails or loses power.
//
// Each operation is one thing that the kernel does or does not do, so that a crash can be placed between any two. Results are those
// of the kernel: 0 or more on success, -errno on failure; nothing throws. An operation that was interrupted before it did anything
// is tried again inside; short reads and writes are the caller's. Paths end with NUL and are absolute. Thread-safe.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace cairn {

enum class FileKind : std::uint8_t { kRegular = 1, kDirectory, kLink, kOther };

struct FileStatus {
  FileKind kind = FileKind::kOther;
  std::uint64_t size_bytes = 0;
  // Which file it is: equal for two names of one file.
  std::uint64_t device = 0;
  std::uint64_t serial = 0;
};

struct DirectoryEntry {
  std::string name;
  FileKind kind = FileKind::kOther;  // of the entry itself: links are not followed
};

// The directories whose names, with those of all directories above, this process has made durable. Thread-safe.
class DurableDirectories {
 public:
  // Returns whether this very directory was added, not another one of that name.
  bool has(const std::string& path, const FileStatus& status) const;
  void add(const std::string& path, const FileStatus& status);
  void clear();

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::pair<std::uint64_t, std::uint64_t>> identities_;  // device and serial
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  DurableDirectories durable;

  // --- files: handles are small numbers, closed by whoever opened them ---
  // Follows links. Never waits, whatever kind of thing the path names.
  virtual int open_for_reading(const std::string& path) noexcept = 0;
  // For reading and writing; -EEXIST if anything has that name, a dangling link too.
  virtual int create_exclusively(const std::string& path) noexcept = 0;
  // The handle is gone even where this reports that data could not be written back.
  virtual int close(int file) noexcept = 0;
  virtual ssize_t read_at(int file, void* destination, std::size_t size, std::uint64_t offset) noexcept = 0;
  virtual ssize_t write_at(int file, const void* source, std::size_t size, std::uint64_t offset) noexcept = 0;
  // Around the page cache from now on, or through it again. -EINVAL where the file system has no such thing.
  virtual int bypass_cache(int file, bool on) noexcept = 0;
  // Reserves and extends to `length`. -EOPNOTSUPP where the file system cannot.
  virtual int allocate(int file, std::uint64_t length) noexcept = 0;
  virtual int truncate(int file, std::uint64_t length) noexcept = 0;
  // Content and length survive power loss; the name is a matter of `sync_directory`.
  virtual int sync_data(int file) noexcept = 0;
  virtual int status_of(int file, FileStatus& status) noexcept = 0;

  // --- names ---
  virtual int status(const std::string& path, bool follow, FileStatus& status) noexcept = 0;
  // Without "." and "..", in no order.
  virtual int list_directory(const std::string& path, std::vector<DirectoryEntry>& entries) = 0;
  virtual int make_directory(const std::string& path) noexcept = 0;
  virtual int remove_directory(const std::string& path) noexcept = 0;
  virtual int remove_file(const std::string& path) noexcept = 0;
  // Atomic, replacing a file by a file, or an empty directory by a directory.
  virtual int rename(const std::string& from, const std::string& to) noexcept = 0;
  // Atomic; -EEXIST if `to` exists; -EINVAL or -ENOSYS where the file system has no such thing.
  virtual int rename_exclusively(const std::string& from, const std::string& to) noexcept = 0;
  // A second name; atomic; -EEXIST if `to` exists.
  virtual int link(const std::string& from, const std::string& to) noexcept = 0;
  // The names in the directory survive power loss. Succeeds without effect where the file system has no such thing.
  virtual int sync_directory(const std::string& path) noexcept = 0;
};

// The machine's. Lives for ever.
FileSystem& system_files();

}  // namespace cairn
