// A leaf of a nested state dict, as `flatten` makes one entry of it. Visiting leaves costs a
// fraction of making the entries: a save that repeats the last one only compares them with its
// paths. Internal.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <cairn/planning/metadata.hpp>
#include <cairn/state/state_dict.hpp>

namespace cairn {

struct FlatLeaf {
  struct Step {
    const std::string* key;  // null: an index of a list
    std::int64_t index;
  };

  const std::string& name;         // the steps, joined with '.'
  const std::vector<Step>& steps;  // from the root
  const Value& value;
  const Value& marks;  // has the marks of all containers around the value

  Path path() const;
  bool is_at(const Path& path) const;  // whether `path` is that of the leaf, or of something below
  bool is_per_rank() const;
  Value marked() const;  // returns the value with all marks that apply to it
};

// Calls `visit` with each leaf, in the order of `flatten`. Throws what it throws, but does not
// compare names.
void visit_leaves(const StateDict& state_dict, const std::function<void(const FlatLeaf& leaf)>& visit);

}  // namespace cairn
