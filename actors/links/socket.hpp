// TCP sockets without waiting: what links need of the operating system.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include <sys/socket.h>

namespace cairn {

// Owns a descriptor. -1: none.
class Socket {
 public:
  explicit Socket(int descriptor = -1) noexcept : descriptor_(descriptor) {}
  ~Socket() { reset(); }
  Socket(Socket&& other) noexcept : descriptor_(other.release()) {}
  Socket& operator=(Socket&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }

  int get() const noexcept { return descriptor_; }
  bool valid() const noexcept { return descriptor_ >= 0; }
  int release() noexcept { return std::exchange(descriptor_, -1); }
  void reset(int descriptor = -1) noexcept;

 private:
  int descriptor_;
};

// A numeric address with its port.
struct Endpoint {
  sockaddr_storage storage{};
  socklen_t length = 0;
};

// Reads "host:port" and "[IPv6 address]:port". Looks names up, and so may block: never called on an actor's thread. Throws
// kInvalidArgument for a malformed address, kUnavailable for a name that is not known.
Endpoint resolve_endpoint(const std::string& address);
// Returns the same for a numeric address, without blocking; nothing for a host name. Throws kInvalidArgument for a malformed
// address.
std::optional<Endpoint> numeric_endpoint(const std::string& address);
// "127.0.0.1:4000", "[::1]:4000".
std::string to_string(const Endpoint& endpoint);
// Whether only processes of this machine can reach it. Not a wildcard address.
bool is_loopback(const Endpoint& endpoint);
// Takes "host:port" or "[IPv6 address]:port" apart. Throws kInvalidArgument.
struct HostPort {
  std::string host;  // without brackets
  int port = 0;
};
HostPort split_address(const std::string& address);
// "host:port", with brackets around an IPv6 address.
std::string join_address(const std::string& host, int port);

// Listens at `host`, a name or address of this machine, on `port`; 0 asks the system for one. Throws kInvalidArgument,
// kUnavailable.
Socket listen_on(const std::string& host, int port);
// Keeps a port, as above, for one listener after the other: nobody connects to it, and while it is there the system gives the port to
// nobody else, be there a listener or not. To be made before the first of them. Throws as above.
Socket reserve_port(const std::string& host, int port);
// Where a socket is bound.
Endpoint local_endpoint(const Socket& socket);

enum class ConnectState { kPending, kConnected, kFailed };
struct ConnectProgress {
  ConnectState state = ConnectState::kFailed;
  int error_number = 0;  // when it failed
};
// Begins to connect and returns at once. `socket` is valid unless the result is kFailed.
ConnectProgress start_connect(const Endpoint& to, Socket& socket);
// How far a connect that was pending has come.
ConnectProgress check_connect(const Socket& socket);

}  // namespace cairn
