#include <cairn/actors/links/shared_window.hpp>

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cairn/base/error.hpp>

namespace cairn {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// A message of one byte with room for one descriptor.
struct Parcel {
  Parcel() {
    part = {&byte, 1};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = CMSG_LEN(sizeof(int));
  }
  char byte = 'm';
  iovec part{};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
};

}  // namespace

SharedWindow::SharedWindow(const Socket& memory) {
  struct stat status {};
  // Without the seals the peer could shrink the file, and reading it would end this process.
  const int seals = ::fcntl(memory.get(), F_GET_SEALS);  // -1: most file systems know none
  if (seals < 0 || (seals & kSeals) != kSeals || ::fstat(memory.get(), &status) != 0)
    throw Error(ErrorCode::kPermission, "the shared memory is not sealed");
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size != kSharedWindowBytes) throw Error(ErrorCode::kPermission, "the shared memory has " + std::to_string(size) + " bytes");
  void* const mapped = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (mapped == MAP_FAILED) throw system_error("map", "shared memory", errno);
  bytes_ = {mapped, size};
}

SharedWindow::~SharedWindow() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

Socket make_shared_memory(std::size_t bytes) {
  Socket memory(::memfd_create("cairn-data", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory.valid()) throw system_error("create", "shared memory (memfd_create)", errno);
  // Allocates the pages now: there is no way to report later that memory is short.
  const auto size = static_cast<off_t>(bytes);
  if (::ftruncate(memory.get(), size) != 0 || ::fallocate(memory.get(), 0, 0, size) != 0)
    throw system_error("allocate " + std::to_string(bytes) + " bytes of", "shared memory", errno);
  if (::fcntl(memory.get(), F_ADD_SEALS, kSeals) != 0) throw system_error("seal", "shared memory", errno);
  return memory;
}

void pass_descriptor(int through, const Socket& descriptor) {
  Parcel parcel;
  cmsghdr* const header = CMSG_FIRSTHDR(&parcel.message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  const int number = descriptor.get();
  std::memcpy(CMSG_DATA(header), &number, sizeof(number));
  if (::sendmsg(through, &parcel.message, MSG_NOSIGNAL) != 1)
    throw system_error("pass shared memory through", "a Unix socket", errno);
}

Socket take_descriptor(int through) {
  Parcel parcel;
  const auto count = ::recvmsg(through, &parcel.message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return Socket();
  Socket taken;
  const cmsghdr* const header = count > 0 ? CMSG_FIRSTHDR(&parcel.message) : nullptr;
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
    int number = -1;
    std::memcpy(&number, CMSG_DATA(header), sizeof(number));
    taken.reset(number);
  }
  // The kernel has closed all but the first descriptor.
  if (!taken.valid() || (parcel.message.msg_flags & MSG_CTRUNC) != 0)
    throw Error(ErrorCode::kCorrupt, "no shared memory was passed");
  return taken;
}

}  // namespace cairn
