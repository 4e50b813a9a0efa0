// Non-blocking TCP sockets: the part of the operating system that links need.
#pragma once

#include <optional>
#include <string>

#include <sys/socket.h>

#include <cairn/base/descriptor.hpp>

namespace cairn {

using Socket = Descriptor;

// A numeric address and port.
struct Endpoint {
  sockaddr_storage storage{};
  socklen_t length = 0;
};

// Resolves "host:port" or "[IPv6 address]:port". May block on a name lookup, so do not call it on
// an actor's thread. Throws kInvalidArgument for a malformed address, kUnavailable for an unknown
// name.
Endpoint resolve_endpoint(const std::string& address);
// Converts a numeric address without blocking. Returns nothing for a host name. Throws
// kInvalidArgument for a malformed address.
std::optional<Endpoint> numeric_endpoint(const std::string& address);
// Formats an endpoint, such as "127.0.0.1:4000" or "[::1]:4000".
std::string to_string(const Endpoint& endpoint);
// Returns whether only processes on this machine can reach the address. False for a wildcard
// address.
bool is_loopback(const Endpoint& endpoint);
struct HostPort {
  std::string host;  // without brackets
  int port = 0;
};
// Splits "host:port" or "[IPv6 address]:port". Throws kInvalidArgument for a malformed address.
HostPort split_address(const std::string& address);
// Returns "host:port", with brackets around an IPv6 address.
std::string join_address(const std::string& host, int port);

// Listens at `host`, a name or address of this machine, on `port`; 0 lets the system choose. Throws
// kInvalidArgument, kPermission or kUnavailable.
Socket listen_on(const std::string& host, int port);
// Binds a port without listening, to reserve it for successive listeners. Nobody can connect to
// this socket. While this socket exists, the system does not assign the port to another process,
// even when nothing listens on it. Create the socket before the first listener. Throws as listen_on
// does.
Socket reserve_port(const std::string& host, int port);
struct PortRange {
  int first = 0;  // with `last` 0: any port
  int last = 0;
};
// Parses "20000-20100", or one port; "" means any port. `origin` names the setting in errors.
// Throws kInvalidArgument.
PortRange parse_port_range(const std::string& text, const std::string& origin);
// Reserves a port of the range that no other socket of this machine is bound to, as reserve_port
// does. Tries them from a random one on. Throws kUnavailable if all are in use.
Socket reserve_port_in(const std::string& host, PortRange range);
// Returns the address that a socket is bound to.
Endpoint local_endpoint(const Socket& socket);

enum class ConnectState { kPending, kConnected, kFailed };
struct ConnectProgress {
  ConnectState state = ConnectState::kFailed;
  int error_number = 0;  // set if `state` is kFailed
};
// Starts to connect and returns at once. `socket` is valid unless the result is kFailed.
ConnectProgress start_connect(const Endpoint& to, Socket& socket);
// Returns the state of a pending connect.
ConnectProgress check_connect(const Socket& socket);

}  // namespace cairn
