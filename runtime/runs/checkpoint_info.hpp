// Describes the checkpoints of a run that a CheckpointManager saves, lists and restores.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace cairn {

// User data stored with a checkpoint, in addition to its state. Only rank 0's data is stored.
struct Annotations {
  std::map<std::string, double> metrics;  // any values, NaN included
  std::map<std::string, std::string> user_metadata;
};

// One checkpoint of a run, as its record describes it.
struct CheckpointInfo {
  std::string name;                  // relative to the run
  std::string checkpoint_id;         // for Checkpointer::load
  std::string save_id;               // "" if PyTorch saved it
  std::uint64_t sequence = 0;        // its commit sequence; later commits have higher numbers; 0 if PyTorch saved it
  std::optional<std::int64_t> step;  // if PyTorch saved it, the step that its name contains
  Annotations annotations;
};

// A checkpoint that is, or may be, later than the one chosen to resume from, and why it was not
// used.
struct PassedOver {
  std::string name;
  std::string why;
};

}  // namespace cairn
