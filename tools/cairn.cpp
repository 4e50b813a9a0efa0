// The command `cairn`: inspects, verifies, compares and converts checkpoints, and analyses traces.
// commands.hpp lists the exit codes.
#include <algorithm>
#include <csignal>
#include <iostream>
#include <new>
#include <sstream>

#include <CLI/CLI.hpp>

#include <cairn/planning/closest_names.hpp>
#include <cairn/runtime/library_versions.hpp>
#include <cairn/tools/commands.hpp>
#include <cairn/tools/terminal.hpp>

namespace cairn::tools {
namespace {

constexpr const char* kExamples = R"(Examples:
  cairn ls run                          lists the checkpoints of a run
  cairn rm run/step_100                 removes a checkpoint, after asking
  cairn cp run/step_100 s3://bucket/run/step_100
  cairn inspect run/step_100            shows what a checkpoint contains
  cairn verify run/step_100             reads every byte and lists every fault
  cairn diff run/step_100 run/step_200  compares two checkpoints
  cairn cat run/step_100 model.weight --slice 0:4,:
  cairn convert run/step_100 model.pt --to torch
  cairn merge run/step_100 merged       makes one checkpoint of what ranks saved for themselves
  cairn prune run --keep last=3         keeps the last three; asks before it removes others
  cairn doctor run                      finds what would make saves slow or fail here
  cairn status traces                   shows what a job does now
  cairn trace run                       shows what went wrong in the last failed save

`cairn COMMAND --help` shows examples of each command. DIR is a path or a URL of a known scheme.
Cairn reads its own checkpoints and PyTorch's.
Exit codes: )";

// Prints an error: one line or a list, never a stack trace. Scripts branch on `code`. The text may
// hold names from files, and terminals obey escape sequences.
int report(ExitCode code, const std::string& what) {
  std::istringstream lines(what);
  std::string text = "cairn: ";
  for (std::string line; std::getline(lines, line);) text += printable(line) + '\n';
  std::cerr << text;
  return code;
}

ExitCode exit_code_of(const Error& error) {
  const bool is_wrong_use = error.code() == ErrorCode::kInvalidArgument || error.code() == ErrorCode::kAlreadyExists ||
                            error.code() == ErrorCode::kPrecondition;
  return is_wrong_use ? kWrongUse : kFoundBad;
}

// Returns "cairn 0.1.0", then one line per library.
std::string versions() {
  std::string text;
  for (const LibraryVersion& library : library_versions())
    text += (text.empty() ? "cairn" : "\n" + library.name) + " " + library.version;
  return text;
}

std::string exit_codes() {
  std::string text;
  for (const ExitStatus& status : kExitStatuses)
    text += (text.empty() ? "" : "; ") + std::to_string(status.code) + " " + status.meaning;
  return text + ".";
}

// Throws WrongUse, with the closest name, if the first argument is not the name of a command. The
// second one must name a command below if a third follows, as in `cairn trace explain DIR`.
void check_command(const CLI::App& app, int argc, char** argv) {
  const std::string name = argc < 2 ? "" : argv[1];
  if (name.empty() || name.front() == '-') return;
  Metadata names;
  for (const auto* const command : app.get_subcommands({})) {
    if (command->check_name(name)) {
      const bool has_below = !command->get_subcommands({}).empty();
      return has_below && argc > 3 && argv[3][0] != '-' ? check_command(*command, argc - 1, argv + 1) : void();
    }
    names.state_dict_metadata.emplace_back(command->get_name(), BytesStorageMetadata());
  }
  const std::string above = app.get_parent() == nullptr ? "" : app.get_name() + " ";
  throw WrongUse("there is no command \"" + above + name + "\": the closest is \"" +
                 closest_names(name, names, SuggestPrefixes::kNo, 1).front() + "\"; cairn " + above + "--help lists all");
}

constexpr std::size_t kDescriptionMax = 45;  // of the columns at which descriptions begin; those further right are not kept

// Prints a help text. On a terminal, what follows a break stands below the description.
void print_help(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t begin = std::min(line.find_first_not_of(' '), line.size());
    const std::size_t description = line.find_first_not_of(' ', line.find("  ", begin));
    const bool is_kept = description <= kDescriptionMax;
    print_line(line, is_kept ? description : description == std::string::npos ? begin : begin + 2);
  }
}

int run(int argc, char** argv) {
  CLI::App app{"Inspects, checks, compares and converts distributed checkpoints, and analyses traces of saves and loads.", "cairn"};
  app.set_version_flag("--version", versions(), "Print the versions of cairn and its libraries, and exit");
  app.footer(kExamples + exit_codes());
  app.require_subcommand(1);

  Run chosen;
  for (AddCommand* const add : {add_ls, add_latest, add_rm, add_cp, add_inspect, add_doctor, add_trace, add_status, add_verify,
                                add_cat, add_diff, add_convert, add_merge, add_prune})
    add(app, chosen);

  check_command(app, argc, argv);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    print_help(app.help());
    return kFine;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kFine : kWrongUse;
  }
  return chosen();
}

}  // namespace
}  // namespace cairn::tools

int main(int argc, char** argv) {
  using namespace cairn::tools;
  // Without SIGXFSZ, exceeding `ulimit -f` is an error like any other, and the partial file is
  // removed.
  std::signal(SIGXFSZ, SIG_IGN);
  // If the reader of the output closes the pipe (`cairn inspect DIR | head`), exit silently, even
  // if the parent process ignored SIGPIPE.
  std::signal(SIGPIPE, SIG_DFL);
  int code = kFoundBad;
  try {
    code = run(argc, argv);
  } catch (const cairn::Error& error) {
    code = report(exit_code_of(error), error.what());
  } catch (const std::bad_alloc&) {
    code = report(kFoundBad, "out of memory");
  } catch (const std::exception& error) {
    code = report(kFoundBad, error.what());
  }
  std::cout.flush();
  // A full disk or a closed pipe must not look like success.
  if (!std::cout) code = report(kFoundBad, "cannot write to standard output");
  return code;
}
