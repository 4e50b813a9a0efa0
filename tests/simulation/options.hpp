// What the command line of the simulation's tests says:
//
//   cairn_simulation_tests --seeds=0..1999      the seeds to run; one number for one of them
//   cairn_simulation_tests --seeds=17 --trace   everything that happens in the worlds of these seeds, to stdout
//   cairn_simulation_tests -tc="traces:*" --trace-seeds=0..999      the seeds of tests of what is recorded
//   cairn_planted_bugs_tests --bug="stale cached plan"        that one alone; any part of the name
#pragma once

#include <cstdint>
#include <string>

namespace cairn::simulation {

struct Options {
  std::string program;
  std::uint64_t first_seed = 0;
  std::uint64_t last_seed = 199;
  std::uint64_t first_trace_seed = 0;
  std::uint64_t last_trace_seed = 49;
  bool trace = false;
  std::string bug;
};

Options& options();

}  // namespace cairn::simulation
