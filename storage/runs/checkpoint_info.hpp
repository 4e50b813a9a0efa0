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

// Tells `restore_latest` what to do about places with data files but no commit record. Cairn's
// files count in a place of any name. PyTorch's files, safetensors files and parts of ranks count
// in a place named step_<n>.
enum class DataWithoutRecord : std::uint8_t {
  kRefuse = 1,      // throws kCorrupt, naming the places
  kUseNewestWhole,  // restores the latest whole checkpoint, and logs which places it passed over; throws if there is none
  // Restores nothing, and logs the places. This holds for every start while such places exist, also
  // after the job has saved whole checkpoints: set it for one start, or move the places away.
  kStartAnew,
};

}  // namespace cairn
