// The Stateful objects in a state dict. A save or load asks them for their state first; a load then
// passes them the loaded state.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <cairn/state/state_dict.hpp>

namespace cairn {

class StatefulObjects {
 public:
  // Finds all Stateful objects, at any depth. Throws kInvalidArgument if one is null,
  // kAlreadyExists if two have the same flattened key.
  explicit StatefulObjects(const StateDict& state_dict);

  // Returns the flattened keys of the objects, sorted.
  std::vector<std::string> keys() const;

  // Calls `state_dict()` of this rank's objects, in the given order. Stores the results in their
  // places in `working`, which must be a copy of the dict in which the objects were found.
  void describe(const std::vector<std::string>& key_order, StateDict& working) const;

  // Calls `load_state_dict()` in the given order, with the values at the objects' places in
  // `working`.
  void restore(const std::vector<std::string>& key_order, StateDict& working) const;

 private:
  struct Place {
    Path path;
    std::shared_ptr<Stateful> object;
  };
  std::map<std::string, Place> places_;
};

// Copies the leaves of `loaded` over those of `target`, and adds leaves that `target` lacks. Keeps
// the Stateful objects in `target`.
void adopt_leaves(StateDict& target, const StateDict& loaded);

}  // namespace cairn
