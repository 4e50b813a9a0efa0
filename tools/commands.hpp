// The commands of `cairn`: functions that add them to the command line, and functions they share.
//
// A command describes its options where it is defined. If the command line names the command, the
// command stores the function to run in `chosen`. That function prints its result to standard
// output and returns the exit code, or throws.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <cairn/base/error.hpp>
#include <cairn/base/units.hpp>
#include <cairn/planning/metadata.hpp>
#include <cairn/storage/store.hpp>

namespace CLI {
class App;
}

namespace cairn::tools {

using Json = nlohmann::ordered_json;

// Scripts rely on these values.
enum ExitCode : int {
  kFine = 0,
  kFoundBad = 1,      // the checkpoint is bad, or the command failed; for `diff`: the checkpoints differ
  kWrongUse = 2,      // the command line is wrong, or names a place where nothing is
  kNotChecked = 3,    // `verify` found no fault, but could not check everything
  kBrokenPipe = 141,  // as shells report SIGPIPE, which ends the process
};

// The help and the manual page, cairn.1, show these texts.
struct ExitStatus {
  ExitCode code;
  const char* meaning;
};
inline constexpr ExitStatus kExitStatuses[] = {
    {kFine, "success"},
    {kFoundBad, "a fault or a difference was found, or the command could not do what it was asked for"},
    {kWrongUse, "incorrect usage, or there is nothing at the given place"},
    {kNotChecked, "verify found no fault, but could not check everything"},
    {kBrokenPipe, "the reader of the output stopped reading"},
};

// The command line is invalid: `cairn` exits with kWrongUse.
class WrongUse : public Error {
 public:
  explicit WrongUse(const std::string& what) : Error(ErrorCode::kInvalidArgument, what) {}
};

using Run = std::function<int()>;

using AddCommand = void(CLI::App& app, Run& chosen);
AddCommand add_ls, add_latest, add_rm, add_cp, add_inspect, add_doctor, add_trace, add_status, add_verify, add_cat, add_diff,
    add_convert, add_merge, add_prune;

// --- shared by the commands ---

struct OpenedCheckpoint {
  std::shared_ptr<Store> store;
  Metadata metadata;
};

// If an object with this name shows that each rank saved for itself (use_collectives=False),
// returns a text that says so and what to do. Otherwise returns "".
std::string why_by_one_rank(const std::string& name);

// Open the checkpoint at `url`. Throw WrongUse if nothing exists there, so that a mistyped path is
// not mistaken for a damaged checkpoint. Throw kNotFound, with advice, if there are files but no
// commit record. `open_checkpoint` throws kCorrupt and kUnsupported as read_metadata does.
std::shared_ptr<Store> open_existing(const std::string& url);
OpenedCheckpoint open_checkpoint(const std::string& url);
// Returns the path if `place` is a regular file other than a commit record.
std::optional<std::filesystem::path> file_at(const std::string& place);

// Prints to standard output. Invalid UTF-8 is replaced.
void print_json(const Json& json);
// Adds a command. If the command line names it, `run` is `chosen`. `examples` end its help.
CLI::App* add_command(CLI::App& app, Run& chosen, const char* name, const char* what, const std::string& examples, Run run);
// Adds a command that takes options. Returns it, and the options that the caller is to describe.
template <class Options>
std::pair<CLI::App*, Options&> add_command(CLI::App& app, Run& chosen, const char* name, const char* what,
                                           const std::string& examples, int (*run)(const Options&)) {
  const auto options = std::make_shared<Options>();
  return {add_command(app, chosen, name, what, examples, [options, run] { return run(*options); }), *options};
}
// Add options that several commands have.
void add_patterns(CLI::App& command, const std::string& name, std::vector<std::string>& patterns, const std::string& what);
void add_memory(CLI::App& command, std::uint64_t& bytes);

// Runs `work`, whose result is the exit code. Catches SIGINT, SIGTERM and SIGHUP, except those that
// were ignored before: `check_signal` then throws kCancelled, so that `work` removes its unfinished
// output, and the process ends as the signal would have ended it. The same signal again ends it at
// once. `doing` begins the error text.
int until_signal(const Run& work);
void check_signal(const std::string& doing);

// Returns the size in bytes of all elements of a tensor; 0 if neither its type nor the file tells.
std::uint64_t tensor_bytes(const TensorStorageMetadata& tensor);
// The largest world size that a checkpoint may claim. Bounds the tables that are sized by a number
// in a record or a file name.
inline constexpr int kWorldSizeMax = 65536;
// Returns the rank that wrote a data file of Cairn, PyTorch or torch_checkpointing, according to
// the file's name; nothing if the name has no rank below kWorldSizeMax.
std::optional<int> rank_of_file(const std::string& name);
// Returns "1 key" or "2 keys".
std::string counted(std::size_t count, const std::string& thing);
// Returns "4 min": whole units, rounded down.
std::string human_seconds(double seconds);
// Replaces invalid UTF-8 bytes and control characters by \xNN: names come from files, and terminals
// obey escape sequences.
std::string printable(const std::string& text);

// Returns whether `name` matches any pattern. In patterns, `*` stands for any text (dots included),
// `?` for one character, and `[a-c]` for one of these characters.
bool matches_any(const std::string& name, const std::vector<std::string>& patterns);

}  // namespace cairn::tools
