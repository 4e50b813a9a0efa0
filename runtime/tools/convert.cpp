// `cairn convert`: whole tensors under their flattened names, in a file of another format. One tensor is in memory at a time.
#include <algorithm>
#include <filesystem>
#include <iostream>

#include <fmt/format.h>
#include <torch/types.h>
#include <CLI/CLI.hpp>

#include <cairn/runtime/tools/commands.hpp>
#include <cairn/runtime/tools/safetensors.hpp>
#include <cairn/runtime/tools/tensor_source.hpp>
#include <cairn/state/tensor_types.hpp>

namespace cairn::tools {
namespace {

struct ConvertOptions {
  std::string source;
  std::string destination;
  std::string format;  // "safetensors"
  bool force = false;
  bool skip_unsupported = false;  // leave out tensors that the format has no type for, instead of refusing
};

struct Selection {
  std::vector<SafetensorsTensor> tensors;
  std::vector<std::string> values;       // keys of what is no tensor
  std::vector<std::string> unsupported;  // "key: why"
};

Selection select(const Metadata& metadata) {
  Selection selection;
  for (const auto& [fqn, entry] : metadata.state_dict_metadata) {
    const auto* stored = std::get_if<TensorStorageMetadata>(&entry);
    if (stored == nullptr) {
      selection.values.push_back(fqn);
      continue;
    }
    const DType dtype = stored->properties.dtype;
    std::string objection = safetensors_objection(fqn, dtype);
    if (objection.empty() && !scalar_type_of(dtype)) {
      objection = fmt::format("the LibTorch in use cannot hold {}", to_string(dtype));
    }
    if (objection.empty()) {
      selection.tensors.push_back({fqn, dtype, stored->size});
    } else {
      selection.unsupported.push_back(printable(fqn) + ": " + objection);
    }
  }
  return selection;
}

std::map<std::string, std::string> header_metadata(const Metadata& metadata) {
  std::map<std::string, std::string> pairs{{"format", "pt"}};  // loaders ask for it
  if (metadata.commit && metadata.commit->step) pairs["step"] = std::to_string(*metadata.commit->step);
  if (metadata.commit) pairs["cairn_save_id"] = metadata.save_id;
  return pairs;
}

void report_left_out(const Selection& selection) {
  for (const auto& reason : selection.unsupported) std::cerr << "left out: " << reason << '\n';
  if (selection.values.empty()) return;
  constexpr std::size_t kNamesMax = 10;
  std::cerr << fmt::format("left out: {} values that are no tensors:", selection.values.size());
  for (std::size_t i = 0; i < std::min(selection.values.size(), kNamesMax); ++i) std::cerr << ' ' << printable(selection.values[i]);
  std::cerr << (selection.values.size() > kNamesMax ? " …\n" : "\n");
}

int convert(const ConvertOptions& options) {
  if (options.destination.find("://") != std::string::npos) {
    throw WrongUse(fmt::format("{} is a URL: the destination must be a file's path", printable(options.destination)));
  }
  if (options.destination.empty()) throw WrongUse("the name of the file to write is empty");
  const auto folder = std::filesystem::absolute(options.destination).parent_path();
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) {
    throw WrongUse(fmt::format("cannot write {}: there is no directory {}", printable(options.destination), printable(folder)));
  }
  const auto source = open_tensor_source(options.source, CheckParts::kYes);
  Selection selection = select(source->metadata());
  if (!selection.unsupported.empty() && !options.skip_unsupported) {
    std::string text = fmt::format("cannot convert {}; --skip-unsupported leaves these tensors out:", printable(options.source));
    for (const auto& reason : selection.unsupported) text += "\n  " + reason;
    throw Error(ErrorCode::kUnsupported, text);
  }

  using Existing = SafetensorsWriter::Existing;
  SafetensorsWriter writer(options.destination, std::move(selection.tensors), header_metadata(source->metadata()),
                           options.force ? Existing::kReplaced : Existing::kRefused);
  for (const auto& tensor : writer.tensors()) {
    const torch::Tensor data = source->read(tensor.name, Box::whole(tensor.shape));
    writer.append({data.data_ptr(), tensor.bytes()});
  }
  writer.finish();
  report_left_out(selection);
  std::cout << fmt::format("{}: {} tensors, {}\n", printable(options.destination), writer.tensors().size(),
                           human_bytes(writer.bytes_written()));
  return kFine;
}

}  // namespace

void add_convert(CLI::App& app, Run& chosen) {
  const auto options = std::make_shared<ConvertOptions>();
  auto* const command = app.add_subcommand("convert", "Write the whole tensors of a checkpoint into a file of another format");
  command->add_option("SRC", options->source, "The checkpoint")->required();
  command->add_option("DST", options->destination, "The file to write")->required();
  command->add_option("--to", options->format, "The format")->required()->check(CLI::IsMember({"safetensors"}));
  command->add_flag("--force", options->force, "Replace DST if it is there");
  command->add_flag("--skip-unsupported", options->skip_unsupported, "Leave out tensors that the format has no type for");
  command->callback([options, &chosen] { chosen = [options] { return convert(*options); }; });
}

}  // namespace cairn::tools
