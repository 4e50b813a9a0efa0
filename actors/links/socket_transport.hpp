// The transport through shared memory and TCP.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include <cairn/actors/links/secret.hpp>
#include <cairn/actors/links/transport.hpp>

namespace cairn {

struct TransportConfig {
  int rank = 0;
  std::string host = "127.0.0.1";  // an address of this machine, at which to listen
  int port = 0;                    // 0: the system chooses
  std::string incarnation{};       // of the world; others are refused
  Secret secret{};                 // empty: no TLS, and loopback addresses only
  bool shared_memory = true;
  std::chrono::milliseconds silence{5000};
  std::chrono::milliseconds handshake_deadline{10000};  // of accepted connections
  std::chrono::milliseconds claim_deadline{10000};      // from the opening of a stream to `receive`; then it ends
  std::size_t unauthenticated_connections_max = 64;     // beyond that the oldest is closed
  std::size_t unclaimed_streams_max = 256;              // before `receive`; peers that open more are refused
};

// Throws kPrecondition if there is no secret and `host` is not a loopback address, or an error of
// `listen_on`.
std::unique_ptr<Transport> make_transport(TransportConfig config);

}  // namespace cairn
