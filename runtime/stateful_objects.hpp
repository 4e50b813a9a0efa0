// The Stateful objects within a state dict: asked for their state before a save or load, and handed what was loaded after it.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <cairn/state/state_dict.hpp>

namespace cairn {

class StatefulObjects {
 public:
  // Finds them all, at any depth. The dict is borrowed only for this call.
  explicit StatefulObjects(const StateDict& state_dict);

  // The flattened names of the objects, sorted.
  std::vector<std::string> keys() const;

  // Calls `state_dict()` of the objects that are here, in the order given, and puts the results in their places in `working`, a
  // copy of the dict they were found in.
  void describe(const std::vector<std::string>& key_order, StateDict& working) const;

  // Calls `load_state_dict()` in the order given, with what stands in their places in `working`.
  void restore(const std::vector<std::string>& key_order, StateDict& working) const;

 private:
  struct Place {
    Path path;
    std::shared_ptr<Stateful> object;
  };
  std::map<std::string, Place> places_;
};

// Copies the leaves of `loaded` over those of `target` and adds what `target` lacks; Stateful objects in `target` stay.
void adopt_leaves(StateDict& target, const StateDict& loaded);

}  // namespace cairn
