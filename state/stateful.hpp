// Objects that know how to describe and restore themselves. After DCP's `Stateful` protocol.
#pragma once

#include <memory>

namespace cairn {

class Dict;

class Stateful {
 public:
  virtual ~Stateful() = default;

  // What to save, or what to fill when loading: tensors in it are loaded in place, so return the live ones. Called on the trainer's
  // thread, on all ranks in the same order: it may run collectives. May throw: that becomes a failure of this rank.
  virtual Dict state_dict() = 0;

  // Takes over what was loaded: the same structure that `state_dict` returned, filled. Called on the trainer's thread, after every
  // rank has loaded, on all ranks in the same order.
  virtual void load_state_dict(const Dict& state_dict) = 0;
};

}  // namespace cairn
