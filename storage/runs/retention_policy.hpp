// The rules by which a CheckpointManager keeps checkpoints of a run. The manager removes all other
// checkpoints that it may remove: see checkpoint_manager.hpp.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace cairn {

enum class Better : std::uint8_t { kLower = 1, kHigher };

// Selects the checkpoints that the manager keeps. A checkpoint stays if any of these rules keeps
// it, if it is pinned, or if it is the latest checkpoint without known damage. In a tiered run the
// latest checkpoint that the far tier has stays as well. If other checkpoints stay and all of them
// share files with the latest (CheckpointWriterOptions::reuse), the latest one that shares none
// with it stays as well, so that there are two copies of all data. A checkpoint is known to be
// damaged if a file has the wrong length, or if a restore found damage. Such checkpoints do not
// count towards the number of a rule: each rule keeps as many sound ones. Damage never causes the
// removal of a checkpoint that a rule would otherwise keep.
struct RetentionPolicy {
  // The number of most recently committed checkpoints to keep; at least 1. Absent: all checkpoints
  // stay, and the other rules must be off.
  std::optional<std::uint32_t> keep_last;
  std::int64_t keep_every = 0;  // for each step that is a multiple of this, keeps the checkpoint committed last; 0: off
  std::uint32_t keep_best = 0;  // keeps this many with the best `metric`; if metrics are equal, prefers the later one; 0: off
  // Checkpoints without this metric, or with NaN or infinity, are never among the best. While no
  // checkpoint has a finite value of the metric, nothing is removed, and the log and
  // `retention_faults` say so.
  std::string metric;
  Better better = Better::kLower;
};

// A checkpoint that could not be removed, and why.
struct RetentionFault {
  std::string name;  // the checkpoint's name; "" if the run could not be read
  std::string why;
};

}  // namespace cairn
