// Command-line options of the simulation's tests:
//
//   cairn_simulation_tests --seeds=0..1999      the seeds to run; one number runs one seed
//   cairn_simulation_tests --seeds=17 --trace   prints every event in these worlds to stdout
//   cairn_simulation_tests -tc="traces:*" --trace-seeds=0..999      the seeds of the trace tests
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
};

Options& options();

}  // namespace cairn::simulation
