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

constexpr CommandSummary kTensorCommands[] = {kVerifyCommand, kCatCommand, kDiffCommand, kConvertCommand, kMergeCommand};

char** command_line = nullptr;

}  // namespace

void become_program_for(int argc, char** argv) {
  command_line = argv;
  const std::string_view name = argc < 2 ? "" : argv[1];
  if (std::any_of(std::begin(kTensorCommands), std::end(kTensorCommands),
                  [&](const auto& command) { return name == command.name; }))
    become_tensor_program();
}

void become_tensor_program() {
  std::error_code error;
  const auto own = std::filesystem::read_symlink("/proc/self/exe", error);
  // A relative path would lead to a program in the current directory.
  if (!own.is_absolute())
    throw Error(ErrorCode::kNotFound, "cannot read the path of this program from /proc/self/exe, and so cannot find " +
                                          std::string(kTensorProgram) + " beside it: mount /proc");
  const std::string program = (own.parent_path() / kTensorProgram).lexically_normal().string();
  ::execv(program.c_str(), command_line);
  throw system_error("start", program, errno);
}

void add_tensor_commands(CLI::App& app, Run&) {
  for (const CommandSummary& command : kTensorCommands) app.add_subcommand(command.name, command.description);
}

}  // namespace cairn::tools
