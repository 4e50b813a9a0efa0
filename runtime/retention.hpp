// Which checkpoints a policy keeps, for the manager and for `cairn prune`. Internal.
#pragma once

#include <set>
#include <string>
#include <vector>

#include <cairn/runtime/checkpoint_manager.hpp>
#include <cairn/storage/run_directory.hpp>

namespace cairn {

// kInvalidArgument, saying what to do, for a policy that cannot be meant.
void check_policy(const RetentionPolicy& policy);

// The names, purely from what is given, of those that `policy` keeps, which asks for `keep_last`. `latest_first`: all of the manager's own.
std::set<std::string> kept_by(const RetentionPolicy& policy, const std::vector<CheckpointInfo>& latest_first);

// The manager's own checkpoints in a run, by name, the latest first, and what a policy makes of them. Pinned ones are not looked for:
// RunDirectory::remove leaves them.
struct Retention {
  std::vector<RunCheckpoint> checkpoints;
  std::vector<CheckpointInfo> infos;  // of each of these
  std::set<std::string> kept;         // by the policy, and the latest that is sound
  std::string latest_sound;           // "" if none is; those that came after it may be damaged by now
};
// The store's errors. Reads records only. `damaged`: save ids of checkpoints that are known not to be sound, whatever those say.
Retention look_at_retention(const RunDirectory& run, const RetentionPolicy& policy, const std::set<std::string>& damaged = {});

}  // namespace cairn
