// Chooses the address at which a rank listens, and at which the other ranks reach it. Worlds and
// process groups use the same rules. Internal: users see docs/launching.md.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include <cairn/actors/links/socket.hpp>
#include <cairn/runtime/launch/launchers.hpp>

namespace cairn {

// An address of a network interface that is up.
struct InterfaceAddress {
  std::string interface;
  std::string address;  // numeric
  bool loopback = false;
};

// Returns the addresses of this machine, IPv4 before IPv6, in the order of the interfaces. Omits
// link-local IPv6 addresses, which mean nothing on other machines. Throws if the system does not
// list them, as in a sandbox without netlink sockets.
std::vector<InterfaceAddress> interface_addresses();

struct AddressRequest {
  std::string asked{};           // the address in the caller's options; empty: none
  std::string peer{};            // a host that all ranks reach, such as MASTER_ADDR; empty: unknown
  bool beyond_loopback = false;  // whether the ranks may use other addresses than loopback by default
  std::chrono::milliseconds deadline{0};  // for resolving the name of `peer`
  std::function<Endpoint(const std::string&)> look_up{};  // null: resolve_endpoint, which libcairn does not export
  std::function<std::vector<InterfaceAddress>()> interfaces = interface_addresses;  // called only if needed
};

struct OwnAddress {
  std::string host;
  std::string origin;  // the setting that chose `host`, for errors; empty: the caller's options, or no setting
};

// Returns the first of these:
// 1. what the options ask for;
// 2. CAIRN_BIND_ADDRESS;
// 3. an address of the interface that CAIRN_SOCKET_IFNAME names;
// 4. 127.0.0.1 if the ranks may not go beyond loopback, or if `peer` is unknown or loopback;
// 5. an address of the interface that GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME names;
// 6. the source address of the route to `peer`. If that is a loopback address, as on a machine that
//    resolves its own name to one: the source address of the default route, else the address of the
//    first interface other than loopback, else (or if the interfaces cannot be listed) 127.0.0.1.
//
// CAIRN_SOCKET_IFNAME is written like NCCL_SOCKET_IFNAME: a list of name prefixes, "=" before whole
// names, "^" before names to avoid. Throws kInvalidArgument for a wildcard address, or if no
// interface has such a name. Throws kUnavailable if the name of `peer` cannot be resolved by the
// deadline. Rules 3 and 5 also throw what `interface_addresses` throws.
OwnAddress own_address(const AddressRequest& request, const Variables& variables);

// Throws the error that rule 1, 2 or 3 above would throw. Ranks call it before they wait for each
// other, so that a wrong setting is reported at once.
void check_own_address(const std::string& asked, const Variables& variables);

}  // namespace cairn
