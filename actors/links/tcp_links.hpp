// Links over TCP between rank processes, of one machine or of many.
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

class LinksFactory;

// What has come to a rank's door. Only grows; may be read from any thread. What was turned away is told to the owner as well: see
// LinkRefused.
struct LinkCounters {
  std::atomic<std::uint64_t> connections{0};     // accepted by the system, by whomever they were opened
  std::atomic<std::uint64_t> established{0};     // of both sides, after an exchange of hellos
  std::atomic<std::uint64_t> garbage{0};         // closed: what came was no frame, no hello, or not in its place
  std::atomic<std::uint64_t> oversize{0};        // closed: a frame announced more bytes than allowed
  std::atomic<std::uint64_t> wrong_protocol{0};  // refused, for the reasons of messages/link.proto
  std::atomic<std::uint64_t> wrong_incarnation{0};
  std::atomic<std::uint64_t> wrong_world_size{0};
  std::atomic<std::uint64_t> wrong_rank{0};
  std::atomic<std::uint64_t> duplicate{0};
  std::atomic<std::uint64_t> crossed{0};
  std::atomic<std::uint64_t> no_link{0};
  std::atomic<std::uint64_t> wrong_secret{0};        // closed: no proof of the job's secret, or one where there is none
  std::atomic<std::uint64_t> handshake_deadline{0};  // closed: no hello came in time
  std::atomic<std::uint64_t> crowded_out{0};         // closed: the oldest without a hello, when too many had none
  std::atomic<std::uint64_t> door_shut{0};           // how often nobody was let in until the process had a descriptor again
};

// Of all ranks at the place where they are to be linked. Until it is complete, or too late, whoever cannot be linked, for whatever
// reason, is tried again, beyond connect_deadline too: it may be in another world still. Once it is, who refuses a connection has ended;
// else that is only said of ranks that were linked before.
struct Arrival {
  std::atomic<bool> complete{false};
  MonotonicTime deadline;
};

// Resolves an address as resolve_endpoint does.
using NameLookup = std::function<Endpoint(const std::string& address)>;

struct TcpLinksConfig {
  Socket listener;  // see listen_on
  // "host:port" of every rank's listener. A host name is resolved when a connection to that rank is opened, on a thread of its
  // own; failed lookups are retried until connect_deadline.
  std::vector<std::string> addresses;
  NameLookup look_up = resolve_endpoint;
  std::string incarnation;
  TransformFactory transform;              // none: as plain_transform(), and all addresses must be loopback
  std::shared_ptr<const Arrival> arrival;  // null: nobody knows who has come
  std::shared_ptr<LinkCounters> counters;  // may be null
};

// Throws kPrecondition, saying what to do, for an address where bytes must not pass as they are.
void check_loopback(const Endpoint& endpoint);

// Raises the process's soft limit of descriptors (RLIMIT_NOFILE) to what is open now, what a rank of a world of this size needs
// for links to all others, and what the `ranks_here` ranks of this process need for themselves. Never lowers it. Throws
// kPrecondition, naming the limit and the number needed, if the hard limit is too low for the links. Thread-safe.
void provide_descriptors(int rank, int world_size, int ranks_here);

// Makes the links of one rank; spawns once. Throws kInvalidArgument for malformed addresses, and as check_loopback does for
// numeric ones.
std::shared_ptr<LinksFactory> make_tcp_links(TcpLinksConfig config);

}  // namespace cairn
