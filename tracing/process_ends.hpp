// The ends of processes, which cairn-launch writes beside the traces.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <cairn/base/clock.hpp>
#include <cairn/tracing/trace_file.hpp>

namespace cairn {

// How the process of a rank ended, as cairn-launch recorded it.
struct TracedProcess {
  WallTime ended;
  std::string signal;  // "SIGKILL"; "" if it exited
  int code = 0;        // its exit code
  bool told = false;   // it ended after cairn-launch had asked it to

  bool has_failed() const { return !told && (code != 0 || !signal.empty()); }  // false if it was told to end
  std::string describe() const;                                                // "was killed by SIGKILL"
};

// A line of a file `*.ends`; docs/tracing.md specifies them.
struct ProcessEnd {
  std::string host;
  WallTime launched;
  int rank = -1;
  std::uint64_t process = 0;
  TracedProcess end;
};

// Reads the files `*.ends` of a directory. Skips lines that it does not understand.
std::vector<ProcessEnd> read_ends(const std::filesystem::path& directory);

// Returns the end of the process that wrote a trace. A rank's program may be the child of the
// process that was launched, such as a shell; then its rank and the time tell.
const ProcessEnd* end_of_writer(const std::vector<ProcessEnd>& ends, const TraceHeader& header);

}  // namespace cairn
