// Generates the manual page and shell completions from the command line's own description, so that
// nothing is written twice.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace cairn::tools {

// Returns the manual page, for section 1.
std::string manual_page(const CLI::App& app);
// Return completion scripts for bash and zsh. They complete commands, options, and the values of
// options that have a fixed set.
std::string bash_completion(const CLI::App& app);
std::string zsh_completion(const CLI::App& app);

}  // namespace cairn::tools
