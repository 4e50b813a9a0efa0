#include <cairn/tools/partial_file.hpp>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include <cairn/base/error.hpp>
#include <cairn/storage/stores/file_system.hpp>
#include <cairn/tools/commands.hpp>

namespace cairn::tools {
namespace {

void sync_folder_of(const std::string& path) {
  const auto parent = std::filesystem::path(path).parent_path();
  const std::string folder = parent.empty() ? "." : parent.string();
  if (const int result = system_files().sync_directory(folder); result < 0) throw system_error("sync", folder, -result);
}

Error already_there(const std::string& path) {
  return Error(ErrorCode::kAlreadyExists, fmt::format("{} exists already; --force replaces it", printable(path)));
}

}  // namespace

PartialFile::PartialFile(std::string path, Existing existing)
    : path_(std::move(path)), partial_path_(path_ + ".cairn-partial"), existing_(existing) {
  struct stat status {};
  if (::lstat(path_.c_str(), &status) == 0) {
    if (existing_ == Existing::kRefused) throw already_there(path_);
    // Renaming over a device or a pipe would replace it for everyone who uses it.
    if (!S_ISREG(status.st_mode) && !S_ISLNK(status.st_mode))
      throw Error(ErrorCode::kAlreadyExists, fmt::format("{} is {}: name the file to write", printable(path_),
                                                         S_ISDIR(status.st_mode) ? "a directory" : "no regular file"));
  }
  descriptor_ = ::open(partial_path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (descriptor_ < 0) throw system_error("create", partial_path_, errno);
  try {
    open();
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

void PartialFile::open() {
  struct stat opened {};
  struct stat named {};
  const bool is_locked = ::flock(descriptor_, LOCK_EX | LOCK_NB) == 0;
  if (!is_locked && errno != EWOULDBLOCK) throw system_error("lock", partial_path_, errno);
  if (::fstat(descriptor_, &opened) != 0) throw system_error("examine", partial_path_, errno);
  // Between the opening and the lock, another process may have renamed the file into place.
  if (!is_locked || ::lstat(partial_path_.c_str(), &named) != 0 || named.st_ino != opened.st_ino)
    throw Error(ErrorCode::kPrecondition,
                fmt::format("another conversion writes there now ({} is locked)", printable(partial_path_)));
  starts_over_ = opened.st_size > 0;
  if (::ftruncate(descriptor_, 0) != 0) throw system_error("cut", partial_path_, errno);
}

PartialFile::~PartialFile() {
  if (!finished_) ::unlink(partial_path_.c_str());
  ::close(descriptor_);
}

void PartialFile::write_at(std::uint64_t offset, ByteSpan bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t written = ::pwrite(descriptor_, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw system_error(fmt::format("write {} bytes to", bytes.size() - done), partial_path_, errno);
    done += static_cast<std::size_t>(written);
  }
}

void PartialFile::rename_into_place() {
  const char* const from = partial_path_.c_str();
  const char* const to = path_.c_str();
  if (existing_ == Existing::kReplaced) {
    if (std::rename(from, to) != 0) throw system_error("rename into place", path_, errno);
    return;
  }
  if (::renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0) return;
  // The file system lacks RENAME_NOREPLACE. link() also fails if the name exists.
  if (errno == EINVAL || errno == ENOSYS) {
    if (::link(from, to) == 0) {
      ::unlink(from);
      return;
    }
  }
  if (errno == EEXIST) throw already_there(path_);
  throw system_error("rename into place", path_, errno);
}

void PartialFile::finish(std::uint64_t length) {
  if (::ftruncate(descriptor_, static_cast<off_t>(length)) != 0) throw system_error("cut", partial_path_, errno);
  if (::fsync(descriptor_) != 0) throw system_error("sync", partial_path_, errno);
  rename_into_place();
  finished_ = true;
  sync_folder_of(path_);
}

}  // namespace cairn::tools
