// System calls of links that signals interrupt (EINTR).
#include <cairn/tests/support/torch.hpp>

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cerrno>
#include <fstream>
#include <string>

#include <cairn/actors/links/secret.hpp>
#include <cairn/tests/actors/links_world.hpp>
#include <cairn/tests/support/interruptions.hpp>
#include <cairn/tests/support/temporary_directory.hpp>

using cairn::testing::Interruptions;

extern "C" {
int __real_connect(int socket, const sockaddr* to, socklen_t length);
int __real_poll(pollfd* sockets, nfds_t count, int timeout_ms);
ssize_t __real_read(int file, void* to, size_t size);

// As Linux does, goes on connecting after the interruption.
int __wrap_connect(int socket, const sockaddr* to, socklen_t length) {
  const int result = __real_connect(socket, to, length);
  const int error_number = errno;
  if ((result == 0 || error_number == EINPROGRESS) && Interruptions::interrupts("connect")) return -1;
  errno = error_number;
  return result;
}
int __wrap_poll(pollfd* sockets, nfds_t count, int timeout_ms) {
  return Interruptions::interrupts("poll") ? -1 : __real_poll(sockets, count, timeout_ms);
}
ssize_t __wrap_read(int file, void* to, size_t size) {
  return Interruptions::interrupts("read") ? -1 : __real_read(file, to, size);
}
}

namespace cairn::testing {
namespace {

TEST_CASE_TEMPLATE("ranks connect although signals interrupt their system calls", Kind, TcpKind, TlsKind) {
  LinkWorld<Kind> world(2);
  const Interruptions signals(3);
  LinkRank zero = world.come(0), one = world.come(1);
  zero.send(1, "hello");
  REQUIRE(one.log().wait_messages(0, 1));
  CHECK(one.log().messages(0) == std::vector<std::string>{"hello"});
  CHECK(zero.log().count(LinkEvent::kDown, 1) == 0);
  CHECK(world.kind.counters(1).connections <= 2);  // data and heartbeats: none was given up
  CHECK(Interruptions::count("connect") > 0);
  CHECK(Interruptions::count("poll") > 0);
}

TEST_CASE("a secret is read although signals interrupt it") {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/secret";
  std::ofstream(path) << kSecret << '\n';
  REQUIRE(::chmod(path.c_str(), 0600) == 0);
  const Interruptions signals(3);
  CHECK(Secret::from_file(path).sign("test", "text") == Secret(kSecret).sign("test", "text"));
  CHECK(Interruptions::count("read") >= 3);
}

}  // namespace
}  // namespace cairn::testing
