// Options in addition to doctest's: --seeds=FROM..TO, --trace-seeds=FROM..TO, --trace.
// See options.hpp.
#define DOCTEST_CONFIG_IMPLEMENT
// Compiles doctest's implementation, even if another file of a unity build came first.
#include <doctest/doctest.h>
#include <cairn/tests/support/torch.hpp>
#include <string>

#include <cairn/base/log.hpp>
#include <cairn/tests/simulation/options.hpp>

namespace cairn::simulation {

Options& options() {
  static Options instance;
  return instance;
}

void take_range(const std::string& range, std::uint64_t& first, std::uint64_t& last) {
  const std::size_t dots = range.find("..");
  first = std::stoull(range);
  last = dots == std::string::npos ? first : std::stoull(range.substr(dots + 2));
}

}  // namespace cairn::simulation

int main(int argc, char** argv) {
  using cairn::simulation::take_range;
  auto& options = cairn::simulation::options();
  options.program = argv[0];
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.rfind("--seeds=", 0) == 0) {
      take_range(argument.substr(8), options.first_seed, options.last_seed);
    } else if (argument.rfind("--trace-seeds=", 0) == 0) {
      take_range(argument.substr(14), options.first_trace_seed, options.last_trace_seed);
    } else if (argument == "--trace") {
      options.trace = true;
    }
  }
  cairn::set_log_level(cairn::LogLevel::kOff);  // coordinators warn of ranks that they wait for
  at::set_num_threads(1);
  doctest::Context context(argc, argv);
  return context.run();
}
