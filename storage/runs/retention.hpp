// Applies retention policies to checkpoints, for the manager and for `cairn prune`. Internal.
#pragma once

#include <set>
#include <string>
#include <vector>

#include <cairn/storage/runs/checkpoint_info.hpp>
#include <cairn/storage/runs/retention_policy.hpp>
#include <cairn/storage/runs/run_directory.hpp>

namespace cairn {

// Throws kInvalidArgument if the policy is invalid. The text says what to do instead.
void check_policy(const RetentionPolicy& policy);

// Returns the names of the checkpoints that `policy` keeps. `policy.keep_last` must be set.
// `latest_first` must contain all of the manager's own checkpoints, the latest first.
std::set<std::string> kept_by(const RetentionPolicy& policy, const std::vector<CheckpointInfo>& latest_first);

// Returns why `policy` cannot rank these checkpoints, if none has a finite value of its metric. The
// text names the metrics that exist. Returns "" if the policy can rank them, or if there are none.
std::string why_unrankable(const RetentionPolicy& policy, const std::vector<CheckpointInfo>& checkpoints);

// The manager's own checkpoints in a run, the latest first, and which of them a policy keeps.
// Does not consider pins: RunDirectory::remove refuses to remove pinned checkpoints.
struct Retention {
  std::vector<RunCheckpoint> checkpoints;
  std::vector<CheckpointInfo> infos;  // describes `checkpoints`, in the same order
  std::vector<CheckpointInfo> sound;  // without those found damaged, in the same order
  std::set<std::string> kept;         // names of checkpoints that stay; includes `latest_sound`
  std::string latest_sound;  // the name of the latest sound checkpoint; "" if there is none, or if nothing would be removed
  std::string latest_copied;          // in tiers, of the latest that the far tier has; "" if nothing would be removed
  std::string why_all;                // why the policy cannot rank the checkpoints, so that all are kept; "" otherwise
};
// The save ids of checkpoints that are known to be damaged, or whose files were found to have the
// right lengths.
struct KnownCheckpoints {
  std::set<std::string> damaged;
  std::set<std::string> whole;
};
// Applies `policy`, whose `keep_last` may be 0, to the checkpoints of a run. In tiers, also reads
// records in the far tier, the latest first, until it finds one that is copied. Looks at the files
// of checkpoints that are not among the `known` ones, to which it adds what is whole. Throws the
// store's errors.
Retention look_at_retention(const RunDirectory& run, const RetentionPolicy& policy, RunDirectory::Listing listing,
                            KnownCheckpoints& known);
Retention look_at_retention(const RunDirectory& run, const RetentionPolicy& policy);

}  // namespace cairn
