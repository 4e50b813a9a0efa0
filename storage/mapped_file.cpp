#include <cairn/storage/mapped_file.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include <cairn/base/error.hpp>
#include <cairn/formats/unicode.hpp>

namespace cairn {

MappedFile::MappedFile(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) throw system_error("open", path, errno);
  if (::fstat(file, &status_) != 0) {
    const int why = errno;
    ::close(file);
    throw system_error("look at", path, why);
  }
  if (!S_ISREG(status_.st_mode)) {
    ::close(file);
    throw Error(ErrorCode::kCorrupt, printable(path) + " is not a regular file");
  }
  // Mapped privately and writable, because LibTorch has no read-only tensors.
  void* const begin = size() == 0 ? nullptr : ::mmap(nullptr, size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file, 0);
  const int why = errno;
  ::close(file);
  if (begin == MAP_FAILED) throw system_error("map", path, why);
  begin_ = static_cast<char*>(begin);
}

MappedFile::~MappedFile() {
  if (begin_ != nullptr) ::munmap(begin_, size());
}

}  // namespace cairn
