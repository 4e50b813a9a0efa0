// Orders the checkpoints of a run: the one that a job should resume from comes first. Internal.
#pragma once

#include <vector>

#include <cairn/runtime/runs/checkpoint_info.hpp>
#include <cairn/storage/run_directory.hpp>

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
  std::vector<ObjectName> without_record;  // all other places
  ObjectName lost_latest;                  // see RunDirectory::Listing
  bool is_checkpoint = false;              // as well
};

// Reads the records of the run. Orders Cairn's checkpoints by their commits. A checkpoint of
// PyTorch's named step_<n> comes first if n is larger than every step of Cairn's and Cairn's latest
// checkpoint has a step; it comes last otherwise. Throws the store's errors.
ResumeOrder resume_order(const RunDirectory& run);

}  // namespace cairn
