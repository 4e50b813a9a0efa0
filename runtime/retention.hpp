// Which checkpoints a policy keeps. Internal; pure.
#pragma once

#include <set>
#include <string>
#include <vector>

#include <cairn/runtime/checkpoint_manager.hpp>

namespace cairn {

// kInvalidArgument, saying what to do, for a policy that cannot be meant.
void check_policy(const RetentionPolicy& policy);

// The names of those that `policy` keeps, which asks for `keep_last`. `latest_first`: all of the manager's own.
std::set<std::string> kept_by(const RetentionPolicy& policy, const std::vector<CheckpointInfo>& latest_first);

}  // namespace cairn
