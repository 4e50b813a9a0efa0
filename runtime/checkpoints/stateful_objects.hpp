// The Stateful objects in a state dict. A save or load asks them for their state first; a load then
// passes them the loaded state.
#pragma once

#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <cairn/state/state_dict.hpp>
#include <cairn/state/storage.hpp>

namespace cairn {

class StatefulObjects {
 public:
  // Finds all Stateful objects, at any depth. `describe` then throws kInvalidArgument if one is
  // null, and kAlreadyExists if two have the same flattened key: in a hook, so that all ranks fail
  // together and none waits for one that never joins.
  explicit StatefulObjects(const StateDict& state_dict);

  bool empty() const { return places_.empty(); }
  // Returns the flattened keys of the objects, sorted.
  std::vector<std::string> keys() const;
  // Returns the name of the hook of `describe` that took longest, "" if there are no objects.
  std::shared_ptr<const std::string> longest() const { return longest_; }

  // Both functions below call a hook of this rank's objects, in the given order. An exception of a
  // hook becomes a PlacedException that names the hook and the object's key, and is logged for
  // `rank`.

  // Calls `state_dict()`. Stores the results in their places in `working`, which must be a copy of
  // the dict in which the objects were found.
  void describe(const std::vector<std::string>& key_order, StateDict& working, int rank) const;

  // Returns the stored names that a load into `working`, which has been described, needs if Cairn's
  // planner flattens it; nothing if it cannot. `rank` is that of `fit`.
  std::optional<NeededNames> needed_names(const StateDict& working, int rank) const;

  // Replaces the state of each FittedStateful object in `working` by state that fits what the
  // checkpoint has for the object. Reads plain values through `reader`, and opaque ones if
  // `keep_opaque` names them. `rank` is the one whose values marked by `per_rank` are loaded. An
  // exception becomes a PlacedException, as above.
  void fit(const Metadata& metadata, StorageReader& reader, const StorageContext& context, int rank,
           const std::vector<std::string>& keep_opaque, StateDict& working);

  // Calls `load_state_dict()` with the values at the objects' places in `working`. Returns the name
  // of the hook that took longest.
  std::string restore(const std::vector<std::string>& key_order, StateDict& working, int rank) const;

 private:
  struct Place {
    Path path;
    std::shared_ptr<Stateful> object;
    bool is_per_rank;
    std::function<void(const Dict&)> load{};  // of the last `fit`, in place of `load_state_dict`
  };
  std::map<std::string, Place> places_;
  std::exception_ptr refusal_;
  std::shared_ptr<std::string> longest_ = std::make_shared<std::string>();
};

// Copies the leaves of `loaded` over those of `target`, and adds leaves that `target` lacks. Keeps
// the Stateful objects in `target`.
void adopt_leaves(StateDict& target, const StateDict& loaded);

}  // namespace cairn
