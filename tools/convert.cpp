// `cairn convert`: converts a checkpoint, or files of tensors, to another format or layout.
#include <sys/statvfs.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <limits>
#include <regex>
#include <unordered_map>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cairn/planning/elements.hpp>
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

// Returns the path of a renamed key. It keeps the leading levels that the new name still begins
// with. The rest becomes a single key, dots included, because that is how modules name their
// parameters.
Path path_of_renamed(const Path& before, const std::string& key) {
  Path path;
  std::string above;
  for (const PathElement& element : before) {
    const std::string longer = above + to_string(Path{element}) + ".";
    if (key.compare(0, longer.size(), longer) != 0) break;
    path.push_back(element);
    above = longer;
  }
  path.emplace_back(key.substr(above.size()));
  return path;
}

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

// Returns whether a path is the place `source`, or below it.
bool is_within(const std::string& path, const std::string& source) {
  const auto outer = local_path(source);
  if (!outer || path.empty()) return false;
  const auto from = std::filesystem::weakly_canonical(*outer), to = std::filesystem::weakly_canonical(path);
  return std::mismatch(from.begin(), from.end(), to.begin(), to.end()).first == from.end();
}

int merge(const ConvertOptions& options) {
  if (open_store(options.source)->exists(kCommitRecordName))
    throw WrongUse(fmt::format("{} is one checkpoint already: there is nothing to merge", printable(options.source)));
  if (is_within(options.destination, options.source))
    throw WrongUse(fmt::format("{} is where the parts are: give another place as DST", printable(options.destination)));
  return convert(options);
}

// Adds the options that `convert` and `merge` share.
void add_shared(CLI::App& command, ConvertOptions& options) {
  command.add_option("--world", options.world, "Split tensors by rows over this many ranks (dcp only)")
      ->check(CLI::Range(1, kWorldSizeMax));
  add_memory(command, options.memory);
  command.add_flag("--force", options.force, "Replace DST if it exists");
}

}  // namespace

std::uint64_t ConvertedKey::bytes() const {
  return dtype == DType::kUnknown ? tensor_bytes(stored) : static_cast<std::uint64_t>(volume(stored.size)) * element_size(dtype);
}

Conversion::Conversion(const ConvertOptions& options)
    : options_(options), source_(open_tensor_source(options.source, CheckParts::kYes)) {
  std::optional<DType> cast;
  if (!options_.cast.empty()) {
    cast = dtype_from_name(options_.cast);
    if (!cast || !is_cast_target(*cast))
      throw WrongUse(fmt::format("--cast {}: give a type of floating point, such as float32, bfloat16, float16 or float8_e4m3fn",
                                 printable(options_.cast)));
  }
  const Metadata& metadata = source_->metadata();
  std::unordered_map<std::string, const Path*> paths;
  for (const auto& [fqn, path] : metadata.planner_data) paths[fqn] = &path;
  std::unordered_map<std::string, std::string> origins;
  for (const auto& [fqn, entry] : metadata.state_dict_metadata) {
    if (!options_.select.empty() && !matches_any(fqn, options_.select)) continue;
    if (matches_any(fqn, options_.exclude)) continue;
    ConvertedKey key;
    key.source = fqn;
    key.key = renamed(fqn);
    const auto path = paths.find(fqn);
    key.path = path == paths.end() || path->second->empty() ? Path{fqn} : *path->second;
    if (key.key != fqn) key.path = path_of_renamed(key.path, key.key);
    if (const auto* tensor = std::get_if<TensorStorageMetadata>(&entry)) {
      key.is_tensor = true;
      key.stored = *tensor;
      key.dtype = cast && is_floating(tensor->properties.dtype) ? *cast : tensor->properties.dtype;
      const std::uint64_t width = std::max<std::uint64_t>(1, element_size(key.dtype));  // 0: an unknown type, left out later
      const std::uint64_t elements_max = std::numeric_limits<std::int64_t>::max() / width;
      if (static_cast<std::uint64_t>(volume(tensor->size)) > elements_max)
        throw Error(ErrorCode::kUnsupported,
                    fmt::format("\"{}\" of size {} is too large to count its bytes", printable(fqn), to_string(tensor->size)));
    }
    if (const auto [other, is_new] = origins.emplace(key.key, fqn); !is_new)
      throw Error(ErrorCode::kAlreadyExists, fmt::format("\"{}\" and \"{}\" would both become \"{}\": change --rename",
                                                         printable(other->second), printable(fqn), printable(key.key)));
    keys_.push_back(std::move(key));
  }
  if (keys_.empty() && !metadata.state_dict_metadata.empty())
    throw WrongUse(
        fmt::format("no key of {} is left to convert: `cairn inspect` lists them; in --select and --exclude * stands for any text",
                    source_->name()));
}

std::string Conversion::renamed(const std::string& before) const {
  std::string key = before;
  for (const std::string& rule : options_.renames) {
    const auto middle = rule.rfind('=');
    if (middle == std::string::npos || middle == 0)
      throw WrongUse(fmt::format("--rename {}: write REGEX=REPL, as in '^module\\.='", printable(rule)));
    std::string replacement = rule.substr(middle + 1);
    for (std::size_t at = 0; at + 1 < replacement.size(); ++at)  // \1 like sed, $1 like ECMAScript
      if (replacement[at] == '\\' && replacement[at + 1] >= '0' && replacement[at + 1] <= '9') replacement[at] = '$';
    try {
      key = std::regex_replace(key, std::regex(rule.substr(0, middle)), replacement);
    } catch (const std::regex_error& error) {
      throw WrongUse(fmt::format("--rename {}: {}", printable(rule), error.what()));
    }
  }
  if (key.empty() && !before.empty()) throw WrongUse(fmt::format("--rename leaves nothing of the key \"{}\"", printable(before)));
  return key;
}

void Conversion::leave_out(const std::function<std::string(const ConvertedKey&)>& why) {
  std::vector<std::string> found;
  const auto is_left_out = [&](const ConvertedKey& key) {
    const std::string reason = why(key);
    if (!reason.empty()) found.push_back(printable(key.source) + ": " + reason);
    return !reason.empty();
  };
  keys_.erase(std::remove_if(keys_.begin(), keys_.end(), is_left_out), keys_.end());
  if (!found.empty() && !options_.skip_unsupported) {
    std::string text =
        fmt::format("cannot convert {}; --exclude leaves this out, and so does --skip-unsupported of convert:", source_->name());
    for (const auto& reason : found) text += "\n  " + reason;
    throw Error(ErrorCode::kUnsupported, text);
  }
  unsupported_.insert(unsupported_.end(), found.begin(), found.end());
}

void Conversion::drop_values() {
  const auto values = std::stable_partition(keys_.begin(), keys_.end(), [](const ConvertedKey& key) { return key.is_tensor; });
  for (auto value = values; value != keys_.end(); ++value) values_.push_back(value->source);
  keys_.erase(values, keys_.end());
}

Bytes Conversion::read(const ConvertedKey& key, const Box& box) {
  check_signal("converting " + source_->name());
  if (!bytes_) require_room();
  Bytes elements = key.dtype == DType::kUnknown ? source_->read_packed(key.source, box) : source_->read(key.source, box);
  if (key.dtype != key.stored.properties.dtype) elements = convert_elements(elements, key.stored.properties.dtype, key.dtype);
  done_ += elements.size();
  progress_.update(done_, *bytes_);
  return elements;
}

void Conversion::require_room() {
  std::uint64_t bytes = 0;
  for (const ConvertedKey& key : keys_)
    if (key.is_tensor && __builtin_add_overflow(bytes, key.bytes(), &bytes)) bytes = std::numeric_limits<std::uint64_t>::max();
  std::filesystem::path place = std::filesystem::absolute(options_.destination).lexically_normal();
  std::error_code error;
  if (!std::filesystem::is_directory(place, error)) place = place.parent_path();
  struct statvfs status {};
  // Some file systems do not tell their size. Writing to them fails when they are full.
  if (::statvfs(place.c_str(), &status) == 0 && status.f_blocks > 0) {
    const std::uint64_t available = static_cast<std::uint64_t>(status.f_bavail) * status.f_frsize;
    if (bytes > available)
      throw Error(ErrorCode::kNoSpace,
                  fmt::format("the tensors to write take {}, and {} are free at {}: free space, leave out keys or choose another "
                              "place",
                              human_bytes(bytes), human_bytes(available), printable(place.string())));
  }
  bytes_ = bytes;
}

std::int64_t Conversion::piece_elements(const ConvertedKey& key) const {
  // A piece is in memory in both dtypes. Half of the limit is left for the reader's own buffers.
  const std::size_t width = element_size(key.dtype) + element_size(key.stored.properties.dtype);
  return static_cast<std::int64_t>(std::max<std::uint64_t>(1, options_.memory / 2 / std::max<std::size_t>(1, width)));
}

bool Conversion::report() const {
  for (const auto& reason : unsupported_) std::cerr << "left out: " << reason << '\n';
  if (values_.empty()) return true;
  constexpr std::size_t kNamesMax = 10;
  std::cerr << fmt::format("left out: {} values that are no tensors:", values_.size());
  for (std::size_t i = 0; i < std::min(values_.size(), kNamesMax); ++i) std::cerr << ' ' << printable(values_[i]);
  std::cerr << (values_.size() > kNamesMax ? " …\n" : "\n");
  if (!options_.skip_unsupported) std::cerr << "the exit code is 1, unless --skip-unsupported or --exclude leaves them out\n";
  return options_.skip_unsupported;
}

void add_merge(CLI::App& app, Run& chosen) {
  const char* const what = "Make one checkpoint of the parts that ranks saved for themselves";
  const auto [command, options] = add_command(app, chosen, "merge", what, kMergeExamples, merge);
  options.format = "dcp";
  command->add_option("SRC", options.source, "The checkpoint of which each rank saved its part")->required();
  command->add_option("DST", options.destination, "The directory to write")->required();
  add_patterns(*command, "--exclude", options.exclude, "Leave out keys that match this pattern");
  add_shared(*command, options);
}

void add_convert(CLI::App& app, Run& chosen) {
  const auto [command, options] =
      add_command(app, chosen, "convert", "Write a checkpoint in another format or layout", kConvertExamples, convert);
  command->add_option("SRC", options.source, "The checkpoint, torch.save file or safetensors file to read")->required();
  command->add_option("DST", options.destination, "The file or directory to write")->required();
  command->add_option("--to", options.format, "The format of DST")
      ->required()
      ->check(CLI::IsMember({"safetensors", "torch", "dcp"}));
  add_patterns(*command, "--select", options.select, "Convert only keys that match this pattern");
  add_patterns(*command, "--exclude", options.exclude, "Leave out keys that match this pattern");
  command->add_option("--rename", options.renames, "Replace what matches in each key; \\1 is the first group; may be repeated")
      ->allow_extra_args(false)
      ->type_name("REGEX=REPL");
  command->add_option("--cast", options.cast, "Convert floating-point tensors to this type")->type_name("DTYPE");
  add_shared(*command, options);
  command->add_flag("--skip-unsupported", options.skip_unsupported, "Leave out what the format cannot hold, instead of failing");
}

}  // namespace cairn::tools
