// The command `cairn`: looks at checkpoints, checks and converts them. Exit codes: 0 fine, 1 found bad, 2 wrong use.
#include <csignal>
#include <iostream>

#include <CLI/CLI.hpp>

#include <cairn/base/version.hpp>
#include <cairn/runtime/tools/commands.hpp>

namespace cairn::tools {
namespace {

constexpr const char* kExamples = R"(Examples:
  cairn inspect run/step_100            what the checkpoint holds
  cairn inspect run/step_100 --json     the same for programs
  cairn verify run/step_100             reads every byte, lists every fault
  cairn convert run/step_100 model.safetensors --to safetensors

DIR is a path or a URL of a known scheme; Cairn's checkpoints and PyTorch's are both understood.
Exit codes: 0 fine, 1 found bad, 2 wrong use.)";

// Errors are one line or a list, never a trace: `code` is what scripts branch on.
int report(ExitCode code, const std::string& what) {
  std::cerr << "cairn: " << what << '\n';
  return code;
}

ExitCode exit_code_of(const Error& error) {
  switch (error.code()) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kAlreadyExists:
    case ErrorCode::kPrecondition:
      return kWrongUse;
    default:
      return kFoundBad;
  }
}

int run(int argc, char** argv) {
  CLI::App app{"Looks at distributed checkpoints, checks and converts them.", "cairn"};
  app.set_version_flag("--version", std::string("cairn ") + kVersion);
  app.footer(kExamples);
  app.require_subcommand(1);

  InspectOptions inspect_options;
  auto* inspect_command = app.add_subcommand("inspect", "Show keys, shapes, files and origin of a checkpoint");
  inspect_command->add_option("DIR", inspect_options.checkpoint, "The checkpoint")->required();
  inspect_command->add_flag("--json", inspect_options.json, "Print JSON");
  inspect_command->add_flag("--chunks", inspect_options.chunks, "List every chunk and where it is stored");

  VerifyOptions verify_options;
  auto* verify_command = app.add_subcommand("verify", "Read every byte of a checkpoint and list all faults");
  verify_command->add_option("DIR", verify_options.checkpoint, "The checkpoint")->required();
  verify_command->add_option("--threads", verify_options.threads, "Threads that read and check")
      ->check(CLI::Range(1u, 256u))
      ->capture_default_str();

  ConvertOptions convert_options;
  auto* convert_command = app.add_subcommand("convert", "Write the whole tensors of a checkpoint into a file of another format");
  convert_command->add_option("SRC", convert_options.source, "The checkpoint")->required();
  convert_command->add_option("DST", convert_options.destination, "The file to write")->required();
  convert_command->add_option("--to", convert_options.format, "The format")->required()->check(CLI::IsMember({"safetensors"}));
  convert_command->add_flag("--force", convert_options.force, "Replace DST if it is there");
  convert_command->add_flag("--skip-unsupported", convert_options.skip_unsupported,
                            "Leave out tensors that the format has no type for");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kFine : kWrongUse;
  }

  if (*inspect_command) return inspect(inspect_options);
  if (*verify_command) return verify(verify_options);
  return convert(convert_options);
}

}  // namespace
}  // namespace cairn::tools

int main(int argc, char** argv) {
  using namespace cairn::tools;
  // A file that grows beyond `ulimit -f` is then an error like any other, and what was written of it is removed.
  std::signal(SIGXFSZ, SIG_IGN);
  int code = kFoundBad;
  try {
    code = run(argc, argv);
  } catch (const cairn::Error& error) {
    code = report(exit_code_of(error), error.what());
  } catch (const std::exception& error) {
    code = report(kFoundBad, error.what());
  }
  std::cout.flush();
  // A full disk or a closed pipe must not look like success.
  if (!std::cout) code = report(kFoundBad, "cannot write to standard output");
  return code;
}
