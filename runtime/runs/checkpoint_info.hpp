// Describes the checkpoints that a CheckpointManager saves, lists and restores in a run.
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
  std::optional<std::int64_t> step;  // the saved step; if PyTorch saved the checkpoint, the step in its name
  Annotations annotations;
};

// A checkpoint that was not used for resuming, and why. It is later than the chosen checkpoint, or
// may be.
struct PassedOver {
  std::string name;
  std::string why;
};

}  // namespace cairn
