// Names processes to people who look for one: by host and process id. Internal.
#pragma once

#include <cstdint>
#include <string>

#include <cairn/base/clock.hpp>

namespace cairn {

// Returns the name of this host, or "" if it has none.
std::string host_name();

// Returns a text that is equal for threads of one machine in one network namespace: each has a
// loopback of its own, as containers do.
std::string machine_name();

// Returns "process 123 on node7". Without a host: "process 123".
std::string process_name(std::uint64_t process, const std::string& host);
std::string process_name();  // of this process

// Returns whether a process that existed at `then` still runs. It must be, or have been, one of
// this host. A zombie does not run.
bool is_running(std::uint64_t process, WallTime then);

}  // namespace cairn
