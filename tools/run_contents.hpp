// Lists the contents of a run, for `cairn ls` and `cairn prune`: its checkpoints, sound or not, and
// the leftovers of saves.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <cairn/storage/runs/run_directory.hpp>

namespace cairn::tools {

// If PyTorch saved it, the head has no more than the step in its name.
struct ListedCheckpoint : RunCheckpoint {
  bool by_cairn = false;
  bool by_torch_checkpointing = false;  // without a record of Cairn's or PyTorch's
  std::optional<int> world_size;   // for PyTorch's checkpoints: the ranks that wrote files
  std::uint64_t bytes = 0;         // total length of the files that the record names
  std::uint64_t shared_bytes = 0;  // of those that an earlier save wrote, and that this checkpoint may share with others
  std::optional<double> saved_at;  // seconds since 1970, if the store knows
  bool pinned = false;
  bool may_resume = false;  // restore_latest takes the first of these that is sound
  // "" if the record can be read, the files have the lengths that it names, and no restore has
  // noted damage.
  std::string fault;
};

// A place one level below the run that has a checkpoint's name but no commit record. Symbolic links
// do not count.
struct Leftover {
  std::string name;
  std::uint64_t bytes = 0;
  bool is_open = false;  // a save has begun there; it is running or dead
  bool is_unrecorded = false;  // complete data files that nothing explains; never removed
  std::string by_ranks;  // "" for a real leftover; otherwise says that each rank saved for itself here, and what to do
};

struct RunContents {
  std::vector<ListedCheckpoint> checkpoints;  // in the order in which restore_latest tries them; then the others, by name
  std::vector<Leftover> leftovers;            // by name
  std::vector<std::string> failure_reports;   // directories that failed saves left for `cairn trace`, by name
};

// Lists a run. Reads records, but no data. Leaves out checkpoints that are removed during the call.
// Throws WrongUse if nothing exists at `url`, or if a checkpoint is there instead of a run. Throws
// the store's errors.
RunContents look_at_run(const std::string& url);
// Returns the places one level below the run. Throws as `look_at_run` does.
std::vector<ObjectName> places_of_run(const std::string& url);
// Returns whether torch_checkpointing wrote what is at a place one level below the run.
// restore_latest does not take it.
bool holds_items(const RunDirectory& run, const ObjectName& name);
std::vector<Leftover> leftovers_of(const RunDirectory& run);

}  // namespace cairn::tools
