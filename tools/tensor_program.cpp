// The part of `cairn` that only cairn-tensors has.
#include <cairn/tools/commands.hpp>

namespace cairn::tools {

void become_program_for(int /*argc*/, char** /*argv*/) {}

void add_tensor_commands(CLI::App& app, Run& chosen) {
  for (const auto add : {add_inspect, add_verify, add_cat, add_diff, add_convert, add_merge, add_prune, add_documentation}) add(app, chosen);
}

}  // namespace cairn::tools
