// The configuration of one rank's TCP links.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/actors/links/socket.hpp>
#include <cairn/actors/links/transform.hpp>
#include <cairn/base/clock.hpp>

namespace cairn {

// Tells the links whether all ranks have arrived in this world. Until `complete` is set or
// `deadline` passes, failed connections are retried, even beyond connect_deadline: the other rank
// may still be in its old world. Once `complete` is set, a rank whose address refuses connections
// counts as ended. Without `complete`, it counts as ended only if a link to it was up before.
struct Arrival {
  std::atomic<bool> complete{false};
  MonotonicTime deadline;
};

// Resolves an address as resolve_endpoint does.
using NameLookup = std::function<Endpoint(const std::string& address)>;

struct TcpLinksConfig {
  Socket listener;  // see listen_on
  // "host:port" of every rank's listener. A host name is resolved on a thread of its own when a
  // connection to that rank is opened. Failed lookups are retried, as failed connections are.
  std::vector<std::string> addresses;
  NameLookup look_up = resolve_endpoint;
  std::string incarnation;
  // Whether each rank was given the addresses and a job id, which determine the incarnation. Errors
  // then say that ranks may have been given different ones.
  bool is_given = false;
  TransformFactory transform;              // if empty: plain_transform(), and all addresses must be loopback
  std::shared_ptr<const Arrival> arrival;  // null: unknown which ranks have arrived
  // Called on the network thread with "accepted" for each connection that the listener accepts, and
  // with the text of each refusal, also of those that the owner is not told. May be empty. For
  // tests.
  std::function<void(std::string_view what)> watch;
};

}  // namespace cairn
