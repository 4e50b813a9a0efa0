// `cairn completion`: completes commands, options and the values of options that have a fixed set.
// Generated from the command line's own description, so that nothing is written twice.
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cairn/tools/commands.hpp>

namespace cairn::tools {
namespace {

std::vector<const CLI::App*> commands_of(const CLI::App& app) { return app.get_subcommands({}); }
std::vector<const CLI::Option*> options_of(const CLI::App& app) { return app.get_options({}); }

// Returns the names of an option: "--json", "-o".
std::vector<std::string> names_of(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const auto& name : option.get_snames()) names.push_back("-" + name);
  for (const auto& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

// Returns the fixed choices of an option's value: "safetensors", "torch", "dcp". Empty if it has
// none.
std::vector<std::string> choices_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const auto begin = type.find('{'), end = type.find('}');
  std::vector<std::string> choices;
  if (begin == std::string::npos || end == std::string::npos) return choices;
  std::string rest = type.substr(begin + 1, end - begin - 1) + ",";
  for (std::size_t comma; (comma = rest.find(',')) != std::string::npos; rest.erase(0, comma + 1))
    choices.push_back(rest.substr(0, comma));
  return choices;
}

std::string joined(const std::vector<std::string>& words, const std::string& between) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

// Calls `visit(app, "trace explain")` for the app and all commands below it.
template <class Visit>
void for_each_command(const CLI::App& app, const std::string& path, Visit&& visit) {
  visit(app, path);
  for (const CLI::App* command : commands_of(app))
    for_each_command(*command, path.empty() ? command->get_name() : path + " " + command->get_name(), visit);
}

std::string quoted(const std::string& text) {
  std::string escaped;
  for (const char letter : text) escaped += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  return "'" + escaped + "'";
}

// Returns the name of a command in the scripts: " trace explain".
std::string place(const std::string& path) { return path.empty() ? "" : " " + path; }

// Returns a shell `case` for each step from a command to its subcommand.
std::string steps(const CLI::App& app) {
  std::vector<std::string> patterns;
  for_each_command(app, "", [&](const CLI::App&, const std::string& path) {
    if (!path.empty()) patterns.push_back(quoted(place(path)));
  });
  return joined(patterns, "|");
}

std::string choice_cases(const CLI::App& app, const std::string& before, const std::string& after) {
  std::string cases;
  for_each_command(app, "", [&](const CLI::App& command, const std::string& path) {
    for (const CLI::Option* option : options_of(command)) {
      const auto choices = choices_of(*option);
      if (choices.empty()) continue;
      for (const std::string& name : names_of(*option))
        cases += fmt::format("    {}) {}{}{} ;;\n", quoted(place(path) + " " + name), before, joined(choices, " "), after);
    }
  });
  return cases;
}

std::string bash_completion(const CLI::App& app) {
  std::string words;
  for_each_command(app, "", [&](const CLI::App& command, const std::string& path) {
    std::vector<std::string> all;
    for (const CLI::App* below : commands_of(command)) all.push_back(below->get_name());
    for (const CLI::Option* option : options_of(command))
      for (const std::string& name : names_of(*option)) all.push_back(name);
    words += fmt::format("    {}) words={} ;;\n", quoted(place(path)), quoted(joined(all, " ")));
  });
  return fmt::format(R"(# Completion of cairn for bash; printed by `cairn completion bash`.
_cairn() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD - 1]}} command='' word words='' choices=''
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD - 1}}"; do
    case "$command $word" in
      {0}) command="$command $word" ;;
    esac
  done
  case "$command $previous" in
{1}  esac
  if [ -n "$choices" ]; then
    mapfile -t COMPREPLY < <(compgen -W "$choices" -- "$current")
    return
  fi
  case "$command" in
{2}  esac
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
  if [ -n "$command" ] && [[ $current != -* ]]; then
    mapfile -t -O "${{#COMPREPLY[@]}}" COMPREPLY < <(compgen -f -- "$current")
  fi
}}
complete -o filenames -F _cairn cairn
)",
                     steps(app), choice_cases(app, "choices='", "'"), words);
}

std::string zsh_completion(const CLI::App& app) {
  const auto described = [](const std::string& name, const std::string& what) { return quoted(name + ":" + what); };
  std::string cases;
  for_each_command(app, "", [&](const CLI::App& command, const std::string& path) {
    std::vector<std::string> below, options;
    for (const CLI::App* one : commands_of(command)) below.push_back(described(one->get_name(), one->get_description()));
    for (const CLI::Option* option : options_of(command))
      for (const std::string& name : names_of(*option)) options.push_back(described(name, option->get_description()));
    cases += fmt::format("    {}) commands=({}); options=({}) ;;\n", quoted(place(path)), joined(below, " "), joined(options, " "));
  });
  return fmt::format(R"(#compdef cairn
# Completion of cairn for zsh; printed by `cairn completion zsh`.
_cairn() {{
  local command='' word
  local -a commands options
  for word in "${{(@)words[2,CURRENT-1]}}"; do
    case "$command $word" in
      ({0}) command="$command $word" ;;
    esac
  done
  case "$command ${{words[CURRENT-1]}}" in
{1}  esac
  case "$command" in
{2}  esac
  if [[ ${{words[CURRENT]}} == -* ]]; then
    _describe -o option options
  else
    (( $#commands )) && _describe command commands
    [[ -n $command ]] && _files
  fi
}}
_cairn "$@"
)",
                     steps(app), choice_cases(app, "compadd ", "; return"), cases);
}

}  // namespace

void add_completion(CLI::App& app, Run& chosen) {
  const auto shell = std::make_shared<std::string>();
  auto* const completion = app.add_subcommand(kCompletionCommand.name, kCompletionCommand.description);
  completion->footer("Examples:\n  source <(cairn completion bash)\n  cairn completion zsh > \"${fpath[1]}/_cairn\"");
  completion->add_option("SHELL", *shell, "The shell")->required()->check(CLI::IsMember({"bash", "zsh"}));
  completion->callback([&app, &chosen, shell] {
    chosen = [&app, shell] {
      std::cout << (*shell == "bash" ? bash_completion(app) : zsh_completion(app));
      return kFine;
    };
  });
}

}  // namespace cairn::tools
