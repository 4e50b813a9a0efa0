// The configuration of one rank's actors. Internal.
#pragma once

#include <memory>
#include <string>

#include <cairn/actors/options.hpp>
#include <cairn/base/clock.hpp>
#include <cairn/base/injection.hpp>
#include <cairn/base/observer.hpp>

namespace cairn {

struct RankConfig {
  int rank = 0;
  int world_size = 1;
  std::string incarnation;   // 32 hexadecimal digits, the same on all ranks
  bool one_process = false;  // all ranks live in this process: in-memory stores are allowed
  RuntimeOptions options;
  std::shared_ptr<Observer> observer;  // may be null
  std::string trace_directory;         // directory for trace files that record every event; "": no trace files
  std::shared_ptr<Injector> injector;  // null: no faults are injected
  const Clock* clock = &system_clock();  // for the times in traces; must outlive the runtime and its calls
};

}  // namespace cairn
