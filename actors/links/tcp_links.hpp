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

// As resolve_endpoint.
using NameLookup = std::function<Endpoint(const std::string& address)>;

struct TcpLinksConfig {
  Socket listener;  // see listen_on
  // "host:port" of every rank's listener. A name is looked up when a connection to that rank is opened, on a thread of its own, and again
  // until connect_deadline.
  std::vector<std::string> addresses;
  NameLookup look_up = resolve_endpoint;
  std::string incarnation;
  TransformFactory transform;              // none: as plain_transform(), and all addresses must be loopback
  std::shared_ptr<const Arrival> arrival;  // null: nobody knows who has come
  std::shared_ptr<LinkCounters> counters;  // may be null
};

// Throws kPrecondition, saying what to do, for an address where bytes must not pass as they are.
void check_loopback(const Endpoint& endpoint);

// Raises the soft limit of the process's descriptors (RLIMIT_NOFILE) to what a rank of a world of this size may need, linked to all
// others, beside what is open now and what the `ranks_here` ranks of this process need for themselves; it is never lowered. Throws
// kPrecondition naming the limit and what is needed if the hard limit forbids the links. Thread-safe.
void provide_descriptors(int rank, int world_size, int ranks_here);

// Serves one rank; spawns once. Throws kInvalidArgument for addresses that cannot be understood, and as check_loopback for numeric ones.
std::shared_ptr<LinksFactory> make_tcp_links(TcpLinksConfig config);

}  // namespace cairn
