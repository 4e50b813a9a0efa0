// Describes the attempt that a writer or reader is set up for.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

namespace cairn {

class StoreObserver;

struct StorageContext {
  std::string checkpoint_id;  // as passed to `save` or `load`
  std::string save_id;        // "" when loading; otherwise unique to this attempt, never reused, safe in file names
  int rank = 0;
  int world_size = 1;
  bool is_coordinator = true;
  // True if all ranks run in this process. All ranks can then use the same store even if only this
  // process can see it, such as "mem:".
  bool one_process = false;
  std::optional<std::int64_t> step;                  // the trainer's iteration, if given
  std::map<std::string, std::string> user_metadata;  // the same on all ranks
  // Receives slow and failed store operations, for traces (storage/store_observer.hpp). May be
  // null.
  std::shared_ptr<StoreObserver> store_observer;
};

}  // namespace cairn
