#include <cairn/actors/links/socket.hpp>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <memory>

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>

#include <cairn/base/error.hpp>
#include <cairn/base/random.hpp>
#include <cairn/base/settings.hpp>

namespace cairn {
namespace {

constexpr int kPortMax = 65535;

[[noreturn]] void malformed(const std::string& address, const char* why) {
  throw Error(ErrorCode::kInvalidArgument, "address '" + address + "': " + why + "; expected host:port or [IPv6 address]:port");
}

// Returns null if the lookup failed; `status` says why.
using Found = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;
Found get_addresses(const std::string& host, int port, int flags, int& status) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  status = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  return {status == 0 ? found : nullptr, &::freeaddrinfo};
}

Endpoint choose(const addrinfo* found) {
  // A name may have addresses of both families. IPv4 is preferred: ranks publish one address, and
  // all ranks must choose the same.
  const addrinfo* chosen = found;
  for (const addrinfo* next = found; next != nullptr; next = next->ai_next) {
    if (next->ai_family == AF_INET) {
      chosen = next;
      break;
    }
  }
  Endpoint endpoint;
  __builtin_memcpy(&endpoint.storage, chosen->ai_addr, chosen->ai_addrlen);
  endpoint.length = chosen->ai_addrlen;
  return endpoint;
}

Endpoint look_up(const std::string& host, int port, int flags) {
  int status = 0;
  const Found found = get_addresses(host, port, flags, status);
  if (found) return choose(found.get());
  throw Error(ErrorCode::kUnavailable,
              "looking up host '" + host + "': " + ::gai_strerror(status) + "; check the name, or give its numeric address");
}

HostPort place_of(const std::string& address) {
  auto place = split_address(address);
  if (place.port == 0) malformed(address, "cannot connect to port 0");
  return place;
}

const sockaddr* address_of(const Endpoint& endpoint) { return reinterpret_cast<const sockaddr*>(&endpoint.storage); }

}  // namespace

HostPort split_address(const std::string& address) {
  const auto colon = address.rfind(':');
  if (colon == std::string::npos) malformed(address, "has no port");
  HostPort result;
  result.host = address.substr(0, colon);
  result.port = parse_number<int>(std::string_view(address).substr(colon + 1)).value_or(-1);
  if (result.port < 0 || result.port > kPortMax) malformed(address, "its port is not a number up to 65535");
  if (!result.host.empty() && result.host.front() == '[') {
    if (result.host.back() != ']') malformed(address, "its brackets do not match");
    result.host = result.host.substr(1, result.host.size() - 2);
  } else if (result.host.find(':') != std::string::npos) {
    malformed(address, "an IPv6 address needs brackets");
  }
  if (result.host.empty()) malformed(address, "has no host");
  return result;
}

Endpoint resolve_endpoint(const std::string& address) {
  const auto place = place_of(address);
  return look_up(place.host, place.port, 0);
}

std::optional<Endpoint> numeric_endpoint(const std::string& address) {
  const auto place = place_of(address);
  int status = 0;
  const Found found = get_addresses(place.host, place.port, AI_NUMERICHOST, status);
  return found ? std::optional<Endpoint>(choose(found.get())) : std::nullopt;
}

std::string join_address(const std::string& host, int port) {
  const bool bracket = host.find(':') != std::string::npos;
  return (bracket ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

std::string to_string(const Endpoint& endpoint) {
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (::getnameinfo(address_of(endpoint), endpoint.length, host, sizeof(host), port, sizeof(port),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "an unknown address";
  }
  return join_address(host, std::atoi(port));
}

bool is_loopback(const Endpoint& endpoint) {
  constexpr unsigned char kLoopbackNet = 127;  // 127.0.0.0/8
  if (endpoint.storage.ss_family == AF_INET) {
    sockaddr_in address{};
    __builtin_memcpy(&address, &endpoint.storage, sizeof(address));
    return ntohl(address.sin_addr.s_addr) >> 24 == kLoopbackNet;
  }
  if (endpoint.storage.ss_family == AF_INET6) {
    sockaddr_in6 address{};
    __builtin_memcpy(&address, &endpoint.storage, sizeof(address));
    return IN6_IS_ADDR_LOOPBACK(&address.sin6_addr) ||
           (IN6_IS_ADDR_V4MAPPED(&address.sin6_addr) && address.sin6_addr.s6_addr[12] == kLoopbackNet);
  }
  return false;
}

namespace {

// Several sockets with SO_REUSEADDR may be bound to one port if only one of them listens. With
// `alone`, the socket gets it later: no other socket is bound then, but others may be afterwards.
Socket bind_port(const std::string& host, int port, bool alone) {
  if (port < 0 || port > kPortMax)
    throw Error(ErrorCode::kInvalidArgument, "listening on port " + std::to_string(port) + ": not a port");
  const auto where = look_up(host, port, AI_PASSIVE);
  const auto name = join_address(host, port);
  Socket socket(::socket(where.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) throw system_error("open a socket for", name, errno);
  const auto share = [&] {
    const int on = 1;
    ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  };
  if (!alone) share();
  if (::bind(socket.get(), address_of(where), where.length) != 0) throw system_error("listen at", name, errno);
  if (alone) share();
  return socket;
}

}  // namespace

Socket reserve_port(const std::string& host, int port) { return bind_port(host, port, false); }

PortRange parse_port_range(const std::string& text, const std::string& origin) {
  PortRange range;
  const char* const end = text.data() + text.size();
  auto parsed = std::from_chars(text.data(), end, range.first);
  range.last = range.first;
  if (parsed.ec == std::errc() && parsed.ptr != end && *parsed.ptr == '-')
    parsed = std::from_chars(parsed.ptr + 1, end, range.last);
  if (text.empty()) return {};
  if (parsed.ec != std::errc() || parsed.ptr != end || range.first < 1 || range.last < range.first || range.last > kPortMax)
    throw Error(ErrorCode::kInvalidArgument,
                origin + " is \"" + text + "\", which is no range of ports, such as 20000-20100");
  return range;
}

Socket reserve_port_in(const std::string& host, PortRange range) {
  Socket any = reserve_port(host, 0);  // also shows whether `host` is of this machine
  if (range.last == 0) return any;
  const int count = range.last - range.first + 1;
  const auto start = static_cast<int>(system_random()->next() % static_cast<std::uint64_t>(count));
  for (int i = 0; i < count; ++i) {
    try {
      return bind_port(host, range.first + (start + i) % count, true);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnavailable) throw;
    }
  }
  throw Error(ErrorCode::kUnavailable, "all ports from " + std::to_string(range.first) + " to " + std::to_string(range.last) +
                                           " of " + host + " are in use: each rank of a machine needs one");
}

Socket listen_on(const std::string& host, int port) {
  Socket socket = reserve_port(host, port);
  if (::listen(socket.get(), SOMAXCONN) != 0) throw system_error("listen at", join_address(host, port), errno);
  return socket;
}

Endpoint local_endpoint(const Socket& socket) {
  Endpoint endpoint;
  endpoint.length = sizeof(endpoint.storage);
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&endpoint.storage), &endpoint.length) != 0) {
    throw system_error("ask the address of", "a socket", errno);
  }
  return endpoint;
}

ConnectProgress start_connect(const Endpoint& to, Socket& socket) {
  socket.reset(::socket(to.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return {ConnectState::kFailed, errno};
  if (::connect(socket.get(), address_of(to), to.length) == 0) return {ConnectState::kConnected, 0};
  if (errno == EINPROGRESS || errno == EINTR) return {ConnectState::kPending, 0};
  const int error_number = errno;
  socket.reset();
  return {ConnectState::kFailed, error_number};
}

ConnectProgress check_connect(const Socket& socket) {
  pollfd question{socket.get(), POLLOUT, 0};
  if (::poll(&question, 1, 0) <= 0) return {ConnectState::kPending, 0};
  int error_number = 0;
  socklen_t length = sizeof(error_number);
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error_number, &length) != 0) error_number = errno;
  return {error_number == 0 ? ConnectState::kConnected : ConnectState::kFailed, error_number};
}

}  // namespace cairn
