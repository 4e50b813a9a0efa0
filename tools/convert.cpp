// `cairn convert`: converts a checkpoint, or files of tensors, to another format or layout.
#include <algorithm>
#include <filesystem>
#include <iostream>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cairn/tools/commands.hpp>
#include <cairn/tools/conversion.hpp>

namespace cairn::tools {
namespace {

constexpr const char* kConvertExamples = R"(Examples:
  cairn convert run/step_100 model.safetensors --to safetensors --select 'model.*' --rename '^model\.='
  cairn convert run/step_100 model.pt --to torch            for torch.load(weights_only=True)
  cairn convert model.pt checkpoint --to dcp --world 8      for torch.distributed.checkpoint, laid out over 8 ranks
  cairn convert run/step_100 small.pt --to torch --cast bfloat16 --exclude 'optimizer.*'

Formats:
  safetensors  one file with the tensors, under their flattened names
  torch        one file with tensors and values, nested as they were saved; io.BytesIO and bytearray become bytes
  dcp          a directory that torch.distributed.checkpoint and Cairn load; without --world, laid out as the source

SRC is a checkpoint of Cairn, PyTorch or torch_checkpointing, a torch.save file, a safetensors file,
or a directory of safetensors files. Values of classes that only Python has are refused, unless left out. --cast
applies to floating-point tensors only. A renamed key keeps the leading levels of nesting that its new name still starts with.

The safetensors format holds only tensors. Other values are left out, and the command exits with 1
unless --skip-unsupported is given.

DST appears once it is complete. If the tensors do not fit into the free space, the command fails
before it writes them. If it fails, and on SIGINT, SIGTERM or SIGHUP, it removes its unfinished
output. After SIGKILL, that output remains beside DST (DST.cairn-partial) or in the directory DST;
the same command then starts over, and removes it.)";

constexpr const char* kMergeExamples = R"(Examples:
  cairn merge run/step_100 merged             joins what each rank saved with use_collectives off
  cairn merge run/step_100 merged --world 8   lays it out over 8 ranks

DST is a checkpoint that any number of ranks loads, and PyTorch. A tensor or value that several ranks
saved is taken from the lowest rank. The command fails, naming them, if values differ, if the parts of
a tensor overlap or do not cover it, or if the parts are of different saves. If ranks have no part, it
names them, and goes on if the other parts cover all tensors. --exclude leaves out keys. DST and
interruptions are as `cairn convert --help` says.)";

int convert(const ConvertOptions& options) {
  if (options.world && options.format != "dcp") throw WrongUse("--world is for --to dcp: other formats have no ranks");
  return until_signal([&] {
    Conversion conversion(options);
    const Converted converted = options.format == "safetensors" ? convert_to_safetensors(conversion)
                                : options.format == "torch"     ? convert_to_torch(conversion)
                                                                : convert_to_dcp(conversion);
    const bool is_as_asked = conversion.report();
    std::cout << fmt::format("{}: {} tensors, {} values, {}{}\n", printable(options.destination), converted.tensors,
                             converted.values, human_bytes(converted.bytes),
                             converted.starts_over ? "; started over, because an earlier conversion was killed" : "");
    return is_as_asked ? kFine : kFoundBad;
  });
}

}  // namespace

namespace {

// Returns whether a path is the place `source`, or below it.
bool is_within(const std::string& path, const std::string& source) {
  const auto outer = local_path(source);
  if (!outer || path.empty()) return false;
  const auto from = std::filesystem::weakly_canonical(*outer), to = std::filesystem::weakly_canonical(path);
  return std::mismatch(from.begin(), from.end(), to.begin(), to.end()).first == from.end();
}

// Adds the options that `convert` and `merge` share.
void add_shared(CLI::App& command, ConvertOptions& options) {
  command.add_option("--world", options.world, "Split tensors by rows over this many ranks (dcp only)")
      ->check(CLI::Range(1, kWorldSizeMax));
  add_memory(command, options.memory);
  command.add_flag("--force", options.force, "Replace DST if it exists");
}

}  // namespace

void add_merge(CLI::App& app, Run& chosen) {
  const auto options = std::make_shared<ConvertOptions>();
  options->format = "dcp";
  auto* const command = app.add_subcommand("merge", "Make one checkpoint of the parts that ranks saved for themselves");
  command->footer(kMergeExamples);
  command->add_option("SRC", options->source, "The checkpoint of which each rank saved its part")->required();
  command->add_option("DST", options->destination, "The directory to write")->required();
  add_patterns(*command, "--exclude", options->exclude, "Leave out keys that match this pattern");
  add_shared(*command, *options);
  command->callback([options, &chosen] {
    chosen = [options] {
      if (open_store(options->source)->exists(kCommitRecordName))
        throw WrongUse(fmt::format("{} is one checkpoint already: there is nothing to merge", printable(options->source)));
      if (is_within(options->destination, options->source))
        throw WrongUse(fmt::format("{} is where the parts are: give another place as DST", printable(options->destination)));
      return convert(*options);
    };
  });
}

void add_convert(CLI::App& app, Run& chosen) {
  const auto options = std::make_shared<ConvertOptions>();
  auto* const command = app.add_subcommand("convert", "Write a checkpoint in another format or layout");
  command->footer(kConvertExamples);
  command->add_option("SRC", options->source, "The checkpoint, torch.save file or safetensors file to read")->required();
  command->add_option("DST", options->destination, "The file or directory to write")->required();
  command->add_option("--to", options->format, "The format of DST")
      ->required()
      ->check(CLI::IsMember({"safetensors", "torch", "dcp"}));
  add_patterns(*command, "--select", options->select, "Convert only keys that match this pattern");
  add_patterns(*command, "--exclude", options->exclude, "Leave out keys that match this pattern");
  command->add_option("--rename", options->renames, "Replace what matches in each key; \\1 is the first group; may be repeated")
      ->allow_extra_args(false)
      ->type_name("REGEX=REPL");
  command->add_option("--cast", options->cast, "Convert floating-point tensors to this type")->type_name("DTYPE");
  add_shared(*command, *options);
  command->add_flag("--skip-unsupported", options->skip_unsupported, "Leave out what the format cannot hold, instead of failing");
  command->callback([options, &chosen] { chosen = [options] { return convert(*options); }; });
}

}  // namespace cairn::tools
