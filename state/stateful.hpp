// Objects that save and restore their own state. Modelled on DCP's `Stateful` protocol.
#pragma once

namespace cairn {

class Dict;

class Stateful {
 public:
  virtual ~Stateful() = default;

  // Returns the state to save, or the state to fill when loading. Loads fill tensors in place, so
  // return the object's own tensors, not copies. Called on the trainer's thread, on all ranks in
  // the same order, so it may run collectives. An exception becomes a failure of this rank that
  // names the object's key.
  virtual Dict state_dict() = 0;

  // Restores the state from a dict with the structure that `state_dict` returned and the loaded
  // values. Called on the trainer's thread, on all ranks in the same order, after every rank has
  // loaded.
  virtual void load_state_dict(const Dict& state_dict) = 0;
};

}  // namespace cairn
