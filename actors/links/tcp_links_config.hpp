// The configuration of one rank's TCP links, and the counters that their owner watches.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <cairn/actors/links/socket.hpp>
#include <cairn/actors/links/transform.hpp>
#include <cairn/base/clock.hpp>

namespace cairn {

// Counts a rank's connections. `garbage`, `oversize` and `wrong_secret` also count connections that
// this rank opened. Values never decrease; any thread may read them.
struct LinkCounters {
  std::atomic<std::uint64_t> connections{0};     // accepted by the listener, including those of strangers
  std::atomic<std::uint64_t> established{0};     // opened by either side, after the exchange of hellos
  std::atomic<std::uint64_t> garbage{0};         // closed: received bytes that are no frame, no hello, or out of place
  std::atomic<std::uint64_t> oversize{0};        // closed: a frame announced more bytes than allowed
  std::atomic<std::uint64_t> wrong_protocol{0};  // this and the next five: answered by a LinkRefusal
  std::atomic<std::uint64_t> wrong_incarnation{0};
  std::atomic<std::uint64_t> wrong_world_size{0};
  std::atomic<std::uint64_t> wrong_rank{0};
  std::atomic<std::uint64_t> duplicate{0};
  std::atomic<std::uint64_t> no_link{0};
  std::atomic<std::uint64_t> wrong_secret{0};        // closed: no proof of the job's secret, or a proof where no secret is used
  std::atomic<std::uint64_t> handshake_deadline{0};  // closed: no hello arrived in time
  std::atomic<std::uint64_t> crowded_out{0};         // closed: the oldest of too many unauthenticated connections
  std::atomic<std::uint64_t> door_shut{0};           // how often accepting was suspended because no descriptor was free
};

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
  std::shared_ptr<LinkCounters> counters;  // may be null
};

}  // namespace cairn
