// Applies retention policies to checkpoints, for the manager and for `cairn prune`. Internal.
#pragma once

#include <set>
#include <string>
#include <vector>

#include <cairn/runtime/runs/checkpoint_info.hpp>
#include <cairn/runtime/runs/retention_policy.hpp>
#include <cairn/storage/run_directory.hpp>

namespace cairn {

// Throws kInvalidArgument if the policy is invalid. The text says what to do instead.
void check_policy(const RetentionPolicy& policy);

// Returns the names of the checkpoints that `policy` keeps. `policy.keep_last` must be set.
// `latest_first` must contain all of the manager's own checkpoints, the latest first.
std::set<std::string> kept_by(const RetentionPolicy& policy, const std::vector<CheckpointInfo>& latest_first);

// The manager's own checkpoints in a run, the latest first, and which of them a policy keeps. Does
// not consider pins: RunDirectory::remove refuses to remove pinned checkpoints.
struct Retention {
  std::vector<RunCheckpoint> checkpoints;
  std::vector<CheckpointInfo> infos;  // describes `checkpoints`, in the same order
  std::set<std::string> kept;         // the names of those that the policy keeps, and the following
  std::string latest_sound;           // the name of the latest sound checkpoint; "" if there is none
  std::string latest_copied;          // in tiers, of the latest that the far tier has; "" if nothing would be removed
};
// Reads the records of a run, and applies `policy`. In tiers, also reads records in the far tier,
// the latest first, until it finds one that is copied. `damaged` has the save ids of checkpoints
// known to be damaged, even if their records look sound. Throws the store's errors.
Retention look_at_retention(const RunDirectory& run, const RetentionPolicy& policy, const std::set<std::string>& damaged = {});

}  // namespace cairn
