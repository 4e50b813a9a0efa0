// Finds the trace files of a path: of one file, of a directory of traces, or of a run.
#pragma once

#include <string>
#include <vector>

namespace cairn {

struct FoundTraces {
  std::string path;  // the file or directory that holds the traces
  std::vector<std::string> files;
};

// Returns the traces at `path`. If it is the directory of a run, returns those of its latest report
// of a failed save, and those of other ranks in a report about the same call. If there are none,
// throws kNotFound, with a place nearby that has some. Throws file system errors.
FoundTraces find_traces(const std::string& path);

}  // namespace cairn
