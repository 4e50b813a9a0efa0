// Of its own: --seeds=FROM..TO, --trace, --bug=NAME. See options.hpp.
#define DOCTEST_CONFIG_IMPLEMENT
#include <cairn/tests/support/torch.hpp>
// torch first
#include <cstring>
#include <string>

#include <cairn/tests/simulation/options.hpp>

namespace cairn::simulation {

Options& options() {
  static Options instance;
  return instance;
}

}  // namespace cairn::simulation

int main(int argc, char** argv) {
  auto& options = cairn::simulation::options();
  options.program = argv[0];
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.rfind("--seeds=", 0) == 0) {
      const std::string range = argument.substr(8);
      const std::size_t dots = range.find("..");
      options.first_seed = std::stoull(range);
      options.last_seed = dots == std::string::npos ? options.first_seed : std::stoull(range.substr(dots + 2));
    } else if (argument == "--trace") {
      options.trace = true;
    } else if (argument.rfind("--bug=", 0) == 0) {
      options.bug = argument.substr(6);
    }
  }
  at::set_num_threads(1);
  doctest::Context context(argc, argv);
  return context.run();
}
