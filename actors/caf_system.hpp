// The actor threads of a process. Includes nothing of CAF. Internal.
#pragma once

#include <memory>

namespace caf {
class actor_system;
}

namespace cairn {

// A process's actor threads, shared by all its ranks and worlds.
class ActorSystem {
 public:
  // `threads` is the number of scheduler threads; one more thread serves the network. 0 selects the
  // number of CPU cores, but at least 2 and at most 4. Throws kUnavailable if no descriptors are
  // free.
  static std::shared_ptr<ActorSystem> create(unsigned threads = 0);
  virtual ~ActorSystem() = default;
  virtual caf::actor_system& caf_system() = 0;
};

}  // namespace cairn
