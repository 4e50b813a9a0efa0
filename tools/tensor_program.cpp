// The part of `cairn` that only cairn-tensors has.
#include <cairn/tools/commands.hpp>

namespace cairn::tools {

void become_program_for(int /*argc*/, char** /*argv*/) {}

}  // namespace cairn::tools
