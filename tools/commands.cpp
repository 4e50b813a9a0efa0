#include <cairn/tools/commands.hpp>

#include <fnmatch.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <csignal>
#include <cstring>
#include <iostream>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <cairn/base/utf8.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/presence.hpp>
#include <cairn/storage/read_metadata.hpp>

namespace cairn::tools {
namespace {

std::atomic<int> caught_signal{0};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler may only use lock-free atomics");

}  // namespace

// The handler only notes the signal, because the clean-up of `work` is not safe within one. It is
// reset by the first signal, so that a second one ends the process.
int until_signal(const Run& work) {
  std::vector<std::pair<int, struct sigaction>> before;
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction old {};
    struct sigaction action {};
    action.sa_handler = [](int which) { caught_signal = which; };
    action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
    if (::sigaction(number, nullptr, &old) != 0 || old.sa_handler == SIG_IGN) continue;
    if (::sigaction(number, &action, nullptr) == 0) before.emplace_back(number, old);
  }
  int code = kFoundBad;
  try {
    code = work();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCancelled || caught_signal == 0) throw;
    std::cerr << "cairn: " << error.what() << std::endl;
    std::signal(caught_signal, SIG_DFL);
    std::raise(caught_signal);
  }
  for (const auto& [number, old] : before) ::sigaction(number, &old, nullptr);
  return code;
}

void check_signal(const std::string& doing) {
  if (const int number = caught_signal; number != 0)
    throw Error(ErrorCode::kCancelled,
                fmt::format("{} was interrupted by {}; its unfinished output is removed", doing, ::strsignal(number)));
}

std::string why_by_one_rank(const std::string& name) {
  return part_of_name(name) ? std::string("each rank saved its part for itself there: ") + kMergeAdvice : "";
}

std::shared_ptr<Store> open_existing(const std::string& url) {
  auto store = open_store(url);
  if (const auto name = store->url().rfind('/'); store->url().substr(name + 1) == kCommitRecordName)
    throw WrongUse(fmt::format("{} is the record of a checkpoint: name the directory that it lies in", printable(store->url())));
  if (has_records(*store)) return store;
  if (!has_objects(*store)) throw WrongUse(fmt::format("there is no checkpoint at {}: nothing is there", printable(store->url())));
  if (is_torch_checkpointing(*store))
    throw Error(ErrorCode::kNotFound, fmt::format("torch_checkpointing wrote what is at {}: inspect, cat, diff, convert and verify "
                                                  "read it, and `cairn convert` makes a checkpoint of it",
                                                  printable(store->url())));
  read_metadata(*store);  // says what is there
  return store;           // a save has ended just now
}

std::optional<std::filesystem::path> file_at(const std::string& place) {
  auto path = local_path(place);
  std::error_code error;
  if (!path || !std::filesystem::is_regular_file(*path, error) || path->filename() == kCommitRecordName) return std::nullopt;
  return path;
}

OpenedCheckpoint open_checkpoint(const std::string& url) {
  const auto store = open_existing(url);
  return {store, read_metadata(*store)};
}

void print_json(const Json& json) { std::cout << json.dump(2, ' ', false, Json::error_handler_t::replace) << '\n'; }

CLI::App* add_command(CLI::App& app, Run& chosen, const char* name, const char* what, const std::string& examples, Run run) {
  auto* const command = app.add_subcommand(name, what);
  command->footer(examples);
  command->callback([&chosen, run = std::move(run)] { chosen = run; });
  return command;
}

void add_patterns(CLI::App& command, const std::string& name, std::vector<std::string>& patterns, const std::string& what) {
  command.add_option(name, patterns, what + "; may be repeated")->type_name("PATTERN")->allow_extra_args(false);
}

void add_memory(CLI::App& command, std::uint64_t& bytes) {
  command.add_option("--memory", bytes, "Memory for tensor elements, approximately")
      ->transform(CLI::AsSizeValue(false))
      ->type_name("SIZE")
      ->default_str("256MiB");
}

std::uint64_t tensor_bytes(const TensorStorageMetadata& tensor) {
  if (tensor.properties.dtype != DType::kUnknown)
    return static_cast<std::uint64_t>(volume(tensor.size)) * element_size(tensor.properties.dtype);
  std::uint64_t bytes = 0;
  for (const StorageInfo& storage : tensor.storage)
    if (storage.payload_offset != 0) bytes += storage.length;  // in a safetensors file
  return bytes;
}

std::optional<int> rank_of_file(const std::string& name) {
  if (const auto part = part_of_name(name)) return part->rank < kWorldSizeMax ? std::optional(part->rank) : std::nullopt;
  if (const auto item = item_of_file(name)) return item->second < kWorldSizeMax ? std::optional(item->second) : std::nullopt;
  constexpr std::string_view kPrefix = "__";
  const auto slash = name.rfind('/');
  const std::string_view file = std::string_view(name).substr(slash == std::string::npos ? 0 : slash + 1);
  if (file.substr(0, kPrefix.size()) != kPrefix) return std::nullopt;
  int rank = 0;
  const char* const end = file.data() + file.size();
  const auto [stop, error] = std::from_chars(file.data() + kPrefix.size(), end, rank);
  if (error != std::errc() || stop == end || *stop != '_' || rank < 0 || rank >= kWorldSizeMax) return std::nullopt;
  return rank;
}

std::string counted(std::size_t count, const std::string& thing) {
  return fmt::format("{} {}{}", count, thing, count == 1 ? "" : "s");
}

std::string human_seconds(double seconds) {
  static constexpr std::pair<const char*, double> kUnits[] = {{"d", 86400}, {"h", 3600}, {"min", 60}, {"s", 1}};
  for (const auto& [name, length] : kUnits)
    if (seconds >= 2 * length) return fmt::format("{:.0f} {}", seconds / length - 0.5, name);
  return fmt::format("{:.0f} s", std::max(0.0, seconds));
}

std::string printable(const std::string& text) { return printable_utf8(text); }

bool matches_any(const std::string& name, const std::vector<std::string>& patterns) {
  const auto matches = [&](const std::string& pattern) { return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0; };
  return std::any_of(patterns.begin(), patterns.end(), matches);
}

}  // namespace cairn::tools
