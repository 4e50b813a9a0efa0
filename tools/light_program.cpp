// The program `cairn` without LibTorch: starts cairn-tensors for the commands that it lacks.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <string>
#include <string_view>

#include <CLI/CLI.hpp>

#include <cairn/base/error.hpp>
#include <cairn/tools/commands.hpp>

namespace cairn::tools {
namespace {

// The other program's path from the folder of this one.
constexpr const char* kTensorProgram = CAIRN_TENSOR_PROGRAM;

bool needs_tensors(int argc, char** argv) {
  if (argc < 2) return false;
  const std::string_view command = argv[1];
  const auto others = {kInspectCommand, kVerifyCommand, kCatCommand,    kDiffCommand,
                       kConvertCommand, kPruneCommand,  kManualCommand, kCompletionCommand};
  return std::any_of(others.begin(), others.end(), [&](const CommandSummary& other) { return command == other.name; });
}

void add_summary(CLI::App& app, const CommandSummary& command) { app.add_subcommand(command.name, command.description); }

}  // namespace

void become_program_for(int argc, char** argv) {
  if (!needs_tensors(argc, argv)) return;
  std::error_code error;
  const auto own = std::filesystem::read_symlink("/proc/self/exe", error);
  // A relative path would lead to a program in the current directory.
  if (!own.is_absolute())
    throw Error(ErrorCode::kNotFound, "cannot read the path of this program from /proc/self/exe, and so cannot find " +
                                          std::string(kTensorProgram) + " beside it: mount /proc");
  const std::string program = (own.parent_path() / kTensorProgram).lexically_normal().string();
  ::execv(program.c_str(), argv);
  throw system_error("start", program, errno);
}

void add_inspect(CLI::App& app, Run&) { add_summary(app, kInspectCommand); }
void add_verify(CLI::App& app, Run&) { add_summary(app, kVerifyCommand); }
void add_cat(CLI::App& app, Run&) { add_summary(app, kCatCommand); }
void add_diff(CLI::App& app, Run&) { add_summary(app, kDiffCommand); }
void add_convert(CLI::App& app, Run&) { add_summary(app, kConvertCommand); }
void add_prune(CLI::App& app, Run&) { add_summary(app, kPruneCommand); }
void add_documentation(CLI::App& app, Run&) {
  add_summary(app, kManualCommand);
  add_summary(app, kCompletionCommand);
}

}  // namespace cairn::tools
