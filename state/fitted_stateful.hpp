// Stateful objects whose state depends on what a checkpoint has for them. Internal.
#pragma once

#include <functional>

#include <cairn/state/state_dict.hpp>

namespace cairn {

class FittedStateful : public Stateful {
 public:
  // Returns whether `fit` needs the stored value at `path`, which is relative to the object.
  virtual bool needs(const Path& path) const = 0;
  struct Fitted {
    Dict state;                              // to fill, in place of that of `state_dict`
    std::function<void(const Dict&)> load;   // takes `state`, filled, in place of `load_state_dict`
  };
  // Called in a load, before any rank changes anything. `stored` is nested as saved, with empty
  // containers where nothing is stored: tensors are on the meta device, and values for which
  // `needs` returned false are 0. Must change nothing. Throws if what is stored does not fit.
  virtual Fitted fit(const Dict& stored) = 0;
};

}  // namespace cairn
