#include <cairn/runtime/launch/own_address.hpp>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <optional>
#include <sstream>

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cairn/base/error.hpp>
#include <cairn/base/wait.hpp>

namespace cairn {
namespace {

constexpr const char* kLoopback = "127.0.0.1";
// An address that no host has (RFC 5737). Asking for the route to it sends nothing.
constexpr const char* kElsewhere = "192.0.2.1";
// Connecting a UDP socket needs a port, but sends nothing there.
constexpr int kAnyPort = 9;
constexpr std::chrono::milliseconds kPauseBetweenLookups{50};

std::string host_of(const Endpoint& endpoint) { return split_address(to_string(endpoint)).host; }

void refuse_wildcard(const std::string& host, const std::string& origin) {
  // A wildcard has more spellings than these, such as "0" and "::0".
  const auto endpoint = numeric_endpoint(join_address(host, kAnyPort));
  const std::string known = endpoint ? host_of(*endpoint) : "";
  if (known != "0.0.0.0" && known != "::" && known != "::ffff:0.0.0.0") return;
  throw Error(ErrorCode::kInvalidArgument, (origin.empty() ? "bind_address " : origin + " ") + host +
                                               " names no address that other ranks could connect to: give one of this machine's");
}

bool is_loopback_host(const std::string& host) {
  if (host == "localhost") return true;
  const auto endpoint = numeric_endpoint(join_address(host, kAnyPort));
  return endpoint && is_loopback(*endpoint);
}

// Returns the address that `names`, in the syntax of NCCL_SOCKET_IFNAME, chooses.
std::optional<std::string> choose(std::string names, bool whole_names, const std::vector<InterfaceAddress>& interfaces) {
  const auto take = [&names](char sign) {
    const bool is_there = !names.empty() && names.front() == sign;
    names.erase(0, is_there ? 1 : 0);
    return is_there;
  };
  const bool avoids = take('^');
  whole_names = take('=') || whole_names;
  const InterfaceAddress* loopback = nullptr;  // only if nothing else is left: other machines cannot reach it
  std::vector<bool> is_avoided(interfaces.size());
  std::istringstream list(names);
  for (std::string name; std::getline(list, name, ',');) {
    for (std::size_t i = 0; i < interfaces.size() && !name.empty(); ++i) {
      const std::string& known = interfaces[i].interface;
      if (whole_names ? known != name : known.rfind(name, 0) != 0) continue;
      if (!avoids) return interfaces[i].address;
      is_avoided[i] = true;
    }
  }
  for (std::size_t i = 0; avoids && i < interfaces.size(); ++i) {
    if (is_avoided[i]) continue;
    if (!interfaces[i].loopback) return interfaces[i].address;
    if (loopback == nullptr) loopback = &interfaces[i];
  }
  return loopback != nullptr ? std::optional(loopback->address) : std::nullopt;
}

std::optional<OwnAddress> named_by(const char* variable, bool whole_names, const Variables& variables,
                                   const AddressRequest& request) {
  const std::string text = value_of(variables, variable);
  if (text.empty()) return std::nullopt;
  const std::vector<InterfaceAddress> interfaces = request.interfaces();
  if (const auto address = choose(text, whole_names, interfaces)) return OwnAddress{*address, variable};
  std::string known;
  for (const auto& one : interfaces) known += (known.empty() ? "" : ", ") + one.interface + " (" + one.address + ")";
  throw Error(ErrorCode::kInvalidArgument, std::string(variable) + " is \"" + text +
                                               "\", but no active interface of this machine matches; it has " +
                                               (known.empty() ? "none" : known));
}

// Returns the source address of packets to `to`. Sends nothing.
std::optional<Endpoint> source_towards(const Endpoint& to) {
  const Socket socket(::socket(to.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket.valid() || ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to.storage), to.length) != 0)
    return std::nullopt;
  return local_endpoint(socket);
}

// Returns the address of the first interface other than loopback, or loopback if there is none or
// the interfaces cannot be listed: if all ranks run on this machine, loopback will do.
std::string first_address(const AddressRequest& request) {
  try {
    for (const auto& candidate : request.interfaces())
      if (!candidate.loopback) return candidate.address;
  } catch (const Error&) {
  }
  return kLoopback;
}

}  // namespace

std::vector<InterfaceAddress> interface_addresses() {
  ifaddrs* found = nullptr;
  if (::getifaddrs(&found) != 0) throw system_error("ask for the interfaces of", "this machine", errno);
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(found, &::freeifaddrs);
  std::vector<InterfaceAddress> addresses;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* one = found; one != nullptr; one = one->ifa_next) {
      // Interfaces without an address are listed as well.
      if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != family || (one->ifa_flags & IFF_UP) == 0) continue;
      Endpoint endpoint;
      endpoint.length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      __builtin_memcpy(&endpoint.storage, one->ifa_addr, endpoint.length);
      if (family == AF_INET6) {
        sockaddr_in6 address{};
        __builtin_memcpy(&address, one->ifa_addr, sizeof(address));
        // Means nothing on another machine without the name of an interface there.
        if (IN6_IS_ADDR_LINKLOCAL(&address.sin6_addr)) continue;
      }
      addresses.push_back({one->ifa_name, host_of(endpoint), (one->ifa_flags & IFF_LOOPBACK) != 0});
    }
  }
  return addresses;
}

OwnAddress own_address(const AddressRequest& request, const Variables& variables) {
  OwnAddress chosen{request.asked, ""};
  if (chosen.host.empty()) chosen = {value_of(variables, "CAIRN_BIND_ADDRESS"), "CAIRN_BIND_ADDRESS"};
  if (!chosen.host.empty()) {
    refuse_wildcard(chosen.host, chosen.origin);
    return chosen;
  }
  // Before loopback is considered: a user who names an interface wants it used.
  if (const auto named = named_by("CAIRN_SOCKET_IFNAME", false, variables, request)) return *named;
  // Without a secret, connections stay on this machine.
  if (!request.beyond_loopback || request.peer.empty() || is_loopback_host(request.peer)) return {kLoopback, ""};
  // The interfaces that carry the trainer's own collectives reach the other ranks.
  if (const auto named = named_by("GLOO_SOCKET_IFNAME", true, variables, request)) return *named;
  if (const auto named = named_by("NCCL_SOCKET_IFNAME", false, variables, request)) return *named;

  const std::string origin = "the route to " + request.peer;
  // The name may appear only when the machine of rank 0 has started.
  const std::function<Endpoint(const std::string&)> look_up = request.look_up ? request.look_up : resolve_endpoint;
  const Endpoint peer =
      retry(request.deadline, kPauseBetweenLookups, [&] { return look_up(join_address(request.peer, kAnyPort)); });
  auto source = source_towards(peer);
  // The peer may be this machine, to which the route is loopback.
  if (!source || is_loopback(*source)) source = source_towards(*numeric_endpoint(join_address(kElsewhere, kAnyPort)));
  return {source && !is_loopback(*source) ? host_of(*source) : first_address(request), origin};
}

void check_own_address(const std::string& asked, const Variables& variables) { own_address(AddressRequest{asked}, variables); }

}  // namespace cairn
