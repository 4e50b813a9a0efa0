// TCP links between rank processes, on one machine or many.
#pragma once

#include <memory>

#include <cairn/actors/links/tcp_links_config.hpp>

namespace cairn {

class LinksFactory;

// Raises the process's soft limit of descriptors (RLIMIT_NOFILE) if it is too low for a rank of a
// world of this size. The limit then covers the descriptors now open, the links of this rank to all
// other ranks, and the actors and files of the `ranks_here` ranks (at least 1) of this process. It
// also covers `store_clients` connections to a c10d store that this process is about to host. Never
// lowers the limit. Throws kPrecondition if the hard limit is too low; the text names `rank` and
// the number needed. Thread-safe.
void provide_descriptors(int rank, int world_size, int ranks_here, int store_clients = 0);

// Makes the links of one rank, one actor after another. The rank's address is free once the factory
// and its actors have ended. Throws kInvalidArgument if an
// address is malformed or the listener is not valid. If `config` has no transform, throws
// kPrecondition unless the listener and all numeric addresses are loopback addresses.
std::shared_ptr<LinksFactory> make_tcp_links(TcpLinksConfig config);

}  // namespace cairn
