// A port of the loopback interface at which nobody listens now.
#pragma once

#include <cairn/actors/links/socket.hpp>

namespace cairn::testing {

inline int free_port() { return split_address(to_string(local_endpoint(listen_on("127.0.0.1", 0)))).port; }

}  // namespace cairn::testing
