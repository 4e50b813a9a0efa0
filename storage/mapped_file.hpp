// A file mapped into memory. Internal.
#pragma once

#include <cstddef>
#include <string>

#include <sys/stat.h>

#include <cairn/base/bytes.hpp>

namespace cairn {

// If the file is truncated while it is mapped, a process that reads it dies of SIGBUS.
class MappedFile {
 public:
  // Throws kNotFound and kPermission, and kCorrupt for anything but a regular file. Does not block
  // on a pipe that has no writer.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::size_t size() const { return static_cast<std::size_t>(status_.st_size); }
  char* begin() const { return begin_; }
  ByteSpan bytes() const { return {begin_, size()}; }

 private:
  struct stat status_ {};
  char* begin_ = nullptr;
};

}  // namespace cairn
