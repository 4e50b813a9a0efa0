// Orders the checkpoints of a run, and chooses the one that a job resumes from. Internal.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <cairn/storage/runs/checkpoint_info.hpp>
#include <cairn/storage/runs/run_directory.hpp>

namespace cairn {

struct ResumeOrder {
  // The checkpoints in the order in which to try them. A checkpoint of PyTorch's has the step of
  // its name, and neither a save id nor a sequence.
  std::vector<RunCheckpoint> candidates;
  // Checkpoints that may be later than the first candidate. If such a checkpoint can be read, it is
  // also one of the last candidates.
  std::vector<PassedOver> passed_over;
  // Places with a record that is not Cairn's or cannot be read, under names that no manager gives.
  std::vector<ObjectName> other_names;
  RunDirectory::Listing listing;  // of which the order was made
};

// Takes the records in `listing`. Orders Cairn's checkpoints by their commits. A checkpoint of
// PyTorch's named step_<n> comes first if n is larger than every step of Cairn's and Cairn's latest
// checkpoint has a step; it comes last otherwise. Throws the store's errors.
ResumeOrder resume_order(const RunDirectory& run, RunDirectory::Listing listing);

// Lists the run and does the same. Passes over data without a record, or throws kCorrupt because of
// it, as `policy` says. Returns nothing if nothing is to be restored.
std::optional<ResumeOrder> resume_order(const RunDirectory& run, DataWithoutRecord policy);

struct ChosenCheckpoint {
  RunCheckpoint checkpoint;
  std::vector<PassedOver> passed_over;
  // The checkpoints of the run, the latest first, if it has nothing else; empty otherwise.
  std::vector<RunCheckpoint> all = {};
};
// Returns the first candidate for which `fault_of` returns "", and the checkpoints that were
// skipped. Returns nothing if the run has none. Throws kCorrupt if it has some but none is sound.
std::optional<ChosenCheckpoint> first_sound(const ResumeOrder& order, const std::string& run,
                                            const std::function<std::string(const RunCheckpoint&)>& fault_of);

// The number of times that a restore looks for another checkpoint after the chosen one was removed.
inline constexpr int kRestoreTriesMax = 100;
// Throws kPrecondition for a checkpoint.
void require_run(const RunDirectory& run, bool is_checkpoint);
// Looks for the checkpoint to resume from: the first that is sound by its record and the lengths of
// its files, and not among the `damaged` ones. Looks again if it was removed meanwhile. Returns
// nothing, and says so in the log, if there is none. Throws as the functions above do.
std::optional<ChosenCheckpoint> choose_checkpoint(const RunDirectory& run, DataWithoutRecord policy,
                                                  const std::vector<PassedOver>& damaged);

}  // namespace cairn
