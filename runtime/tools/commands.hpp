// The commands of `cairn`: how each comes into the command line, and what they share. No LibTorch here: only commands that touch tensors
// need it.
//
// A command describes its options where it is defined. When the command line asks for it, it leaves in `chosen` what is to be run: that
// prints its result to standard output and returns the exit code; what stops it, it throws.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <cairn/base/error.hpp>
#include <cairn/planning/metadata.hpp>
#include <cairn/storage/store.hpp>

namespace CLI {
class App;
}

namespace cairn::tools {

// What scripts rely on.
enum ExitCode : int {
  kFine = 0,
  kFoundBad = 1,      // the checkpoint, or reaching it, is at fault; for `diff`: they differ
  kWrongUse = 2,      // the command line is
  kBrokenPipe = 141,  // as the shell tells of SIGPIPE, which is how it ends
};

// The one table of them: help, manual and README say what stands here.
struct ExitStatus {
  ExitCode code;
  const char* meaning;
};
inline constexpr ExitStatus kExitStatuses[] = {
    {kFine, "all is fine"},
    {kFoundBad, "found bad: damage, a difference, a problem, or what was asked for could not be done"},
    {kWrongUse, "wrong use: the command line, or a place where nothing is"},
    {kBrokenPipe, "whoever read the output has stopped reading"},
};

// The command line asks for what cannot be: ends as kWrongUse.
class WrongUse : public Error {
 public:
  explicit WrongUse(const std::string& what) : Error(ErrorCode::kInvalidArgument, what) {}
};

using Run = std::function<int()>;

void add_ls(CLI::App& app, Run& chosen);
void add_inspect(CLI::App& app, Run& chosen);
void add_verify(CLI::App& app, Run& chosen);
void add_cat(CLI::App& app, Run& chosen);
void add_diff(CLI::App& app, Run& chosen);
void add_prune(CLI::App& app, Run& chosen);
void add_doctor(CLI::App& app, Run& chosen);
void add_convert(CLI::App& app, Run& chosen);
void add_trace(CLI::App& app, Run& chosen);
void add_documentation(CLI::App& app, Run& chosen);  // after all others: `cairn manual` and `cairn completion` tell of them

// --- shared by them ---------------------------------------------------------------------------------------------------------

struct OpenedCheckpoint {
  std::shared_ptr<Store> store;
  Metadata metadata;
};

// Throws WrongUse where nothing is, so that a mistyped path is not mistaken for a damaged checkpoint; kNotFound, with what is
// there, where files lie but no checkpoint was completed; kCorrupt and kUnsupported as read_metadata does.
std::shared_ptr<Store> open_existing(const std::string& url);
OpenedCheckpoint open_checkpoint(const std::string& url);

// Bytes of all elements of a tensor.
std::uint64_t tensor_bytes(const TensorStorageMetadata& tensor);
// More ranks no checkpoint is taken to be of: what makes a table of them must not be led by a number in a record or a name.
inline constexpr int kWorldSizeMax = 65536;
// The rank that wrote a data file, Cairn's or PyTorch's, by its name; below kWorldSizeMax.
std::optional<int> rank_of_file(const std::string& name);
// Where a URL leads on this machine; nothing for stores that are no directories.
std::optional<std::filesystem::path> local_path(const std::string& url);
// "12.3 MiB"
std::string human_bytes(std::uint64_t bytes);
// "4 min": whole units, rounded down.
std::string human_seconds(double seconds);
// Bytes that are not valid UTF-8 and control characters are shown as \xNN: names come from files, terminals obey escapes.
std::string printable(const std::string& text);
// Whether Cairn wrote the checkpoint, rather than PyTorch.
bool written_by_cairn(const Metadata& metadata);

// Whether a name is what shell wildcards ask for: `*` any text (dots as well), `?` one character, `[a-c]` one of these.
bool matches(const std::string& name, const std::string& pattern);
bool matches_any(const std::string& name, const std::vector<std::string>& patterns);

}  // namespace cairn::tools
