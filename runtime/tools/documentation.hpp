// What is made of the command line's own description, so that nothing about it is written twice: the manual page, and what shells complete.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace cairn::tools {

// The page of section 1, for man.
std::string manual_page(const CLI::App& app);
// Scripts for the two shells: commands, options, and the values of options that have a choice.
std::string bash_completion(const CLI::App& app);
std::string zsh_completion(const CLI::App& app);

}  // namespace cairn::tools
