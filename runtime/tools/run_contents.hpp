// What lies in a run: its checkpoints, sound or not, and what saves have left. For `cairn ls` and `cairn prune`.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <cairn/storage/run_directory.hpp>

namespace cairn::tools {

struct ListedCheckpoint {
  std::string name;  // below the run
  bool by_cairn = false;
  std::string save_id;
  std::optional<std::uint64_t> sequence;
  std::optional<std::int64_t> step;
  std::optional<int> world_size;   // of PyTorch's: the ranks that wrote files
  std::uint64_t bytes = 0;         // of the files that the record names
  std::optional<double> saved_at;  // seconds since 1970, where the store tells
  bool pinned = false;
  std::string fault;  // "" if record and lengths are sound
  std::map<std::string, std::string> user_metadata;
};

// A place that has a name of Cairn's but holds no checkpoint. A symbolic link is not one.
struct Leftover {
  std::string name;
  std::uint64_t bytes = 0;
  bool is_open = false;  // a save has begun there: it runs, or has died
};

struct RunContents {
  std::vector<ListedCheckpoint> checkpoints;  // Cairn's, the last to be committed first; then the others, by name
  std::vector<Leftover> leftovers;            // by name
  std::vector<std::string> failure_reports;   // what failed saves have left for `cairn trace`, by name
};

// Throws WrongUse where nothing is, or a checkpoint in place of a run; the store's errors. Reads records, no data.
RunContents look_at_run(const std::string& url);
std::vector<Leftover> leftovers_of(const RunDirectory& run);

}  // namespace cairn::tools
