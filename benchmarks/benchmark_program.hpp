// Parts of several benchmarks: output and command line of those that measure the coordinator
// without ranks, and reads that come from the disk.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <string_view>

#include <cairn/base/error.hpp>

namespace cairn::benchmarks {

// Prints one row as a line of JSON for the table of benchmarks/report.py. `goal` describes the
// condition that `met` reports on.
inline void print(const std::string& name, double value, const char* unit, double limit, const std::string& goal, bool met) {
  std::printf(
      "{\"name\": \"%s\", \"value\": %.6g, \"unit\": \"%s\", \"limit\": %.6g, \"ratio\": %.4g, \"goal\": \"%s\", \"met\": %s}\n",
      name.c_str(), value, unit, limit, value / limit, goal.c_str(), met ? "true" : "false");
  std::fflush(stdout);
}

// Drops the files below a directory from the page cache, so that the next read comes from the disk.
inline void forget_cached(const std::string& directory) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    if (!entry.is_regular_file()) continue;
    const int file = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) throw system_error("open", "the benchmark's files", errno);
    ::fdatasync(file);
    ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    ::close(file);
  }
}

// Calls `run(quick)`; `quick` is true if `--quick` was given. Returns the program's exit status.
inline int run_benchmark(int argc, char** argv, void (*run)(bool quick)) {
  bool quick = false;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) != "--quick") {
      std::fprintf(stderr, "usage: %s [--quick]\n", argv[0]);
      return 2;
    }
    quick = true;
  }
  try {
    run(quick);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}

}  // namespace cairn::benchmarks
