// TCP links between rank processes, on one machine or many.
#pragma once

#include <memory>

#include <cairn/actors/links/tcp_links_config.hpp>

namespace cairn {

class LinksFactory;

// Raises the process's soft limit of descriptors (RLIMIT_NOFILE) so that it covers the descriptors
// now open, the links of a rank to all others in a world of this size, the needs of this process's
// ranks (`ranks_here`, at least 1), and `store_clients` connections to a store that this process is
// about to host. Never lowers the limit. Throws kPrecondition, naming the limit and the number
// needed, if the hard limit is too low for the links, the actors of these ranks and the store.
// Thread-safe.
void provide_descriptors(int rank, int world_size, int ranks_here, int store_clients = 0);

// Makes the links of one rank; the factory may spawn only one actor. Throws kInvalidArgument for
// malformed addresses. Without a transform, also throws as check_loopback does, for the listener
// and for numeric addresses.
std::shared_ptr<LinksFactory> make_tcp_links(TcpLinksConfig config);

}  // namespace cairn
